"""Content filters of one guardrail."""

from __future__ import annotations

import uuid
from typing import Any, Final

from accounts.serializers.guardrails import BUILTIN_LABELS
from inference.filters.definitions import Filters, build_filters

GUARDRAIL: Final = uuid.UUID(int=7)
# The number of a credit card, which the filters of cards recognise.
NUMBER: Final = "4111111111111111"


def builtin(slug: str, action: str = "redact", **fields: Any) -> Filters:
    entry = {"slug": slug, "action": action, "label": BUILTIN_LABELS[slug], **fields}
    return build_filters(GUARDRAIL, [entry], None)


def custom(pattern: str, action: str = "redact", label: str | None = None) -> Filters:
    entry = {"pattern": pattern, "action": action, "label": label}
    return build_filters(GUARDRAIL, None, [entry])
