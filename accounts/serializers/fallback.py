"""The level of fallback from private models, which organizations, workspaces and endpoints set."""

from __future__ import annotations

from typing import Any, Final

from accounts.policy import Fallback
from config.api.fields import ChoiceField

FALLBACKS: Final = tuple(str(level) for level in Fallback)


class FallbackChoice(ChoiceField):
    """``none``, ``listed``, ``any`` or null, which inherits."""

    def __init__(self, **kwargs: Any) -> None:
        text = (
            "Extension: where requests for a model may go for which the organization has, or had, "
            "a private endpoint. `none`: to private endpoints alone. `listed`: also to public "
            "providers that the request names in `provider.order` or `provider.only`. `any`: to "
            "all. Null inherits; the strictest level that is set on endpoint, workspace and "
            "organization decides, and `listed` where none is set."
        )
        fixed = {"choices": FALLBACKS, "required": False, "allow_null": True, "help_text": text}
        super().__init__(**{**fixed, **kwargs})
