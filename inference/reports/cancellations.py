"""How often the callers of a key leave before the end, and what that costs upstream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from django.db.models import Count, Q, Sum

from accounts.models import ApiKey
from config.clocks.clock import clock
from inference.models import DailyUsage, Generation
from inference.reports.rollups import midnight

DAYS: Final = 7
# A busy key makes millions of requests a day; its latest ones show how it behaves.
_LATEST: Final = 10_000


@dataclass(frozen=True, slots=True)
class Cancellations:
    """The requests of a key, those whose caller left, and the upstream cost of these."""

    requests: int = 0
    cancelled: int = 0
    upstream_nano: int = 0

    @property
    def share(self) -> float:
        return self.cancelled / self.requests if self.requests else 0.0


def sum_week(keys: Sequence[ApiKey]) -> dict[UUID, Cancellations]:
    """Returns the cancellations of keys in the last seven completed days, by the id of the key."""
    today = clock.now().date()
    rows = (
        DailyUsage.objects.filter(
            # The organizations choose the index.
            organization_id__in={key.organization_id for key in keys},
            by_end_user=False,
            day_id__gte=today - timedelta(days=DAYS),
            api_key_id__in=[key.pk for key in keys],
        )
        .order_by()
        .values_list("api_key_id")
        .annotate(Sum("requests"), Sum("cancelled"), Sum("cancelled_nano"))
    )
    return {key_id: Cancellations(*map(int, sums)) for key_id, *sums in rows}


def sum_today(key: ApiKey) -> Cancellations:
    """Returns the cancellations of a key among its latest 10,000 requests of this UTC day."""
    today = midnight(clock.now().date())
    latest = (
        Generation.objects.created(today)
        .filter(api_key=key)
        .order_by("-created_at")
        .values("status", "upstream_cost_nano")[:_LATEST]
    )
    is_cancelled = Q(status=Generation.Status.CANCELLED)
    sums = latest.aggregate(
        requests=Count("status"),
        cancelled=Count("status", filter=is_cancelled),
        upstream_nano=Sum("upstream_cost_nano", filter=is_cancelled, default=0),
    )
    return Cancellations(**{name: int(value) for name, value in sums.items()})
