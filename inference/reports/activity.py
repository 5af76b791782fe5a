"""The usage of an organization by day: from stored sums for final days, else from generations.

A generation counts once it has ended, for the UTC day on which it was admitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Count, F, Q, QuerySet, Sum, UUIDField
from django.db.models.functions import Coalesce, TruncDate

from accounts.models.edits import refusal
from catalog.models import ModelEndpoint
from config.clocks.clock import clock
from config.database.replica.reading import read
from endpoints.models import PrivateEndpoint
from inference.models import DailyUsage, Generation, UsageDay
from inference.reports.rollups import end_of, join_days, midnight

ACTIVITY_DAYS: Final = 30
_DAY: Final = timedelta(days=1)
# As many as ``POST /analytics/query`` returns.
_MOST_ROWS: Final = 10_000
_TOO_MANY: Final = (
    f"Gives more than {_MOST_ROWS:,} rows. Name a `date`, a `workspace_id`, an `api_key_hash` or "
    "an `end_user`; or ask POST /analytics/query for `external_user`, with a `limit`."
)
_KEY: Final = ("date", "model", "endpoint_id", "provider_name")
_TOKENS: Final = ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens")


@dataclass(frozen=True, slots=True)
class Activity:
    """A query for activity; an attribute of ``None`` is no filter.

    ``group_by`` splits rows by a further column, ``workspace_id`` or ``end_user``.
    """

    organization_id: UUID
    days: Collection[date]
    api_key_id: UUID | None = None
    member_id: UUID | None = None
    workspace_id: UUID | None = None
    end_user: str | None = None
    group_by: str | None = None

    @read
    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each date, model and endpoint with usage, the latest date first.

        Amounts are integers of nano-USD. Callers choose the names of end users, so the rows of
        these are limited; raises :class:`InvalidRequest` for more.
        """
        rolled = set(UsageDay.objects.filter(day__in=self.days).values_list("day", flat=True))
        found = [*self._read_sums(rolled), *self._sum_generations(set(self.days) - rolled)]
        if self.group_by == "end_user" and len(found) > _MOST_ROWS:
            raise refusal("group_by", _TOO_MANY)
        names = permaslugs({row["endpoint_id"] for row in found})
        for row in found:
            # The endpoint of a stored sum may have been deleted.
            row["model_permaslug"] = names.get(row["endpoint_id"], row["model"])
        found.sort(key=self._order)
        found.sort(key=lambda row: row["date"], reverse=True)
        return found

    def _read_sums(self, days: Collection[date]) -> Iterable[dict[str, Any]]:
        """Reads the stored sums of days."""
        by_end_user = self.end_user is not None or self.group_by == "end_user"
        rows = DailyUsage.objects.filter(
            organization=self.organization_id, by_end_user=by_end_user, day__in=days
        ).annotate(date=F("day_id"))
        return self._group(
            rows,
            requests=Sum("requests"),
            cost_nano=Sum("cost_nano"),
            byok_nano=Sum("byok_nano"),
        )

    def _sum_generations(self, days: Collection[date]) -> Iterable[dict[str, Any]]:
        """Sums the generations of days without stored sums."""
        if not days:
            return ()
        spans = Q()
        for begin, end in join_days(days):
            spans |= Q(created_at__gte=begin, created_at__lt=end)
        rows = (
            Generation.objects.for_organization(self.organization_id)
            .exclude(status=Generation.Status.PENDING)
            .created(midnight(min(days)), end_of(max(days)))
            .filter(spans)
            .annotate(
                date=TruncDate("created_at"),
                endpoint_id=Coalesce(
                    "private_endpoint_id", "model_endpoint_id", output_field=UUIDField()
                ),
            )
        )
        return self._group(
            rows,
            requests=Count("pk"),
            cost_nano=Sum("cost_nano"),
            byok_nano=Coalesce(Sum("upstream_cost_nano", filter=Q(is_byok=True)), 0),
        )

    def _group(self, rows: QuerySet[Any], **sums: Any) -> Iterable[dict[str, Any]]:
        """Sums rows by the columns of the report, and applies its filters."""
        wanted = {
            name: value
            for name in ("api_key_id", "member_id", "workspace_id", "end_user")
            if (value := getattr(self, name)) is not None
        }
        key = _KEY if self.group_by is None else (*_KEY, self.group_by)
        sums |= {name: Coalesce(Sum(name), 0) for name in _TOKENS}
        # A prefix keeps the names of the sums apart from the names of their columns.
        named = {f"sum_{name}": expression for name, expression in sums.items()}
        found = rows.filter(**wanted).order_by().values(*key).annotate(**named)
        for row in found[: _MOST_ROWS + 1] if self.group_by == "end_user" else found:
            yield {name: row[name] for name in key} | {
                name: int(row[f"sum_{name}"]) for name in sums
            }

    def _order(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        split = "" if self.group_by is None else str(row[self.group_by] or "")
        return row["model"], str(row["endpoint_id"]), row["provider_name"], split


def completed_days() -> list[date]:
    """Returns the UTC days of the report, the latest first; today is not complete."""
    today = clock.now().date()
    return [today - number * _DAY for number in range(1, ACTIVITY_DAYS + 1)]


def permaslugs(endpoint_ids: Collection[UUID]) -> dict[UUID, str]:
    """Returns the canonical slug of the model of each endpoint, public or private."""
    named: dict[UUID, str] = {}
    kinds: tuple[Any, ...] = (ModelEndpoint, PrivateEndpoint)
    for kind in kinds:
        rows = kind.objects.filter(pk__in=endpoint_ids)
        named.update(rows.values_list("pk", "model__canonical_slug"))
    return named
