"""What a shadow has counted, for the page of its guardrail; and how old counts end."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from django.db.models import Min, Sum

from accounts.models import GuardrailShadow
from config.clocks.clock import clock
from inference.models import GuardrailCount, ShadowCount
from inference.shadow_counts import GuardrailRefusal

_KEPT: Final = timedelta(days=35)
_KEPT_OF_GUARDRAILS: Final = timedelta(days=1)


@dataclass(slots=True)
class ShadowResult:
    """The requests that a shadow has judged, and those that it would have refused."""

    total: int = 0
    refused: int = 0
    unread: int = 0
    since: datetime | None = None
    reasons: dict[str, int] = field(default_factory=dict)
    keys: dict[UUID, int] = field(default_factory=dict)


def read_result(shadow_id: UUID) -> ShadowResult:
    """Returns the counts of a shadow, the highest first."""
    rows = ShadowCount.objects.filter(shadow_id=shadow_id)
    result = ShadowResult(since=rows.aggregate(first=Min("hour"))["first"])
    for row in rows.values("reason").annotate(sum=Sum("requests")).order_by("-sum", "reason"):
        result.total += row["sum"]
        if row["reason"] == GuardrailRefusal.UNREAD:
            result.unread = row["sum"]
        elif row["reason"]:
            result.refused += row["sum"]
            result.reasons[row["reason"]] = row["sum"]
    refusing = rows.exclude(reason__in=("", GuardrailRefusal.UNREAD))
    by_key = refusing.values_list("api_key_id").annotate(sum=Sum("requests")).order_by("-sum")
    result.keys = dict(by_key)
    return result


def clear_shadows() -> int:
    """Deletes old counts, and those of shadows that have ended; returns their number."""
    old = ShadowCount.objects.filter(hour__lt=clock.now() - _KEPT)
    present = GuardrailShadow.objects.values("pk")
    ended = ShadowCount.objects.exclude(shadow_id__in=present)
    judged = GuardrailCount.objects.filter(slot__lt=clock.now() - _KEPT_OF_GUARDRAILS)
    return sum(int(rows.delete()[0]) for rows in (old, ended, judged))
