"""Stores the sums of completed days once, so that reports need not read their generations."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Sum

from billing.folds import archived_until
from config.api.errors import Conflict
from config.partitions.tables import read_now
from config.sql import fetch_rows
from inference.ids import first_id, last_id
from inference.models import DailyUsage, Generation, UsageDay

_DAY: Final = timedelta(days=1)
# A statement that stores a generation may commit later than its stamp, and workers of an older
# release stamp by the clock of their host.
_GRACE: Final = timedelta(hours=1)

# The whole statement reads one snapshot. A generation that has ended never changes, and a completed
# day gets no new ones, so the sums are final once no generation of the day is pending. Those of
# prices and tokens that a tenant or its server states end at the range of their columns.
_ROLL_UP: Final = """
WITH opened AS (
    INSERT INTO inference_usageday (day, rolled_up_at)
    SELECT %(day)s, now()
    WHERE NOT EXISTS (
        SELECT FROM inference_journal j JOIN inference_generation g ON g.id = j.generation_id
        WHERE g.id >= %(first_id)s AND g.id < %(last_id)s
        AND g.created_at >= %(begin)s AND g.created_at < %(end)s
    )
    ON CONFLICT DO NOTHING
    RETURNING day
),
summed AS (
    INSERT INTO inference_dailyusage (
        organization_id, day, by_end_user, workspace_id, api_key_id, member_id, end_user,
        endpoint_id, model, provider_name, requests, prompt_tokens, completion_tokens,
        cached_tokens, reasoning_tokens, cost_nano, byok_nano, cancelled,
        cancelled_nano, upstream_nano, failed, latency_ms, timed
    )
    SELECT organization_id, day, GROUPING(end_user) = 0, workspace_id, api_key_id, member_id,
           end_user, endpoint_id, model, provider_name, count(*),
           greatest(least(coalesce(sum(prompt_tokens), 0), {most}), 0),
           greatest(least(coalesce(sum(completion_tokens), 0), {most}), 0),
           greatest(least(coalesce(sum(cached_tokens), 0), {most}), 0),
           greatest(least(coalesce(sum(reasoning_tokens), 0), {most}), 0), sum(cost_nano),
           least(coalesce(sum(upstream_cost_nano) FILTER (WHERE is_byok), 0), {most}),
           count(*) FILTER (WHERE status = 'cancelled'),
           least(
               coalesce(sum(upstream_cost_nano) FILTER (WHERE status = 'cancelled'), 0), {most}
           ),
           least(sum(upstream_cost_nano), {most}), count(*) FILTER (WHERE status = 'failed'),
           coalesce(sum(latency_ms), 0), count(latency_ms)
    FROM (
        SELECT g.*, o.day, coalesce(g.private_endpoint_id, g.model_endpoint_id) AS endpoint_id
        FROM opened o, inference_generation g
        WHERE g.id >= %(first_id)s AND g.id < %(last_id)s
        AND g.created_at >= %(begin)s AND g.created_at < %(end)s
    ) g
    GROUP BY organization_id, day, workspace_id, api_key_id, member_id, endpoint_id, model,
             provider_name, GROUPING SETS ((), (end_user))
    -- The rows that a report reads lie together, away from the many of end users.
    ORDER BY GROUPING(end_user) = 0, organization_id
)
SELECT day FROM opened
""".replace("{most}", "9223372036854775807")

_DELETE_SUMS: Final = "DELETE FROM inference_dailyusage WHERE day BETWEEN %(first)s AND %(last)s"
_DELETE_DAYS: Final = "DELETE FROM inference_usageday WHERE day BETWEEN %(first)s AND %(last)s"


def midnight(day: date) -> datetime:
    """Returns the beginning of a UTC day."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def end_of(day: date) -> datetime:
    """Returns the beginning of the next UTC day, or of the calendar's last day its last moment."""
    return datetime.max.replace(tzinfo=UTC) if day == date.max else midnight(day) + _DAY


def join_days(days: Collection[date]) -> Iterator[tuple[datetime, datetime]]:
    """Joins consecutive days to ranges of time, so that each needs one index scan."""
    return join_spans({midnight(day) for day in days}, _DAY)


def join_spans(
    begins: Collection[datetime], length: timedelta
) -> Iterator[tuple[datetime, datetime]]:
    """Joins spans of one length that follow each other; yields the begin and end of each range."""
    begin: datetime | None = None
    for each in sorted(begins):
        if begin is None:
            begin = each
        if each + length not in begins:
            yield begin, each + length
            begin = None


def roll_up_usage(now: datetime | None = None) -> int:
    """Rolls up every completed day without a running generation; returns the number of days.

    Reports read the generations of the other days themselves. Several processes may run it at once.
    """
    return sum(_roll_up(day) for day in _due(now or read_now()))


class RowsArchived(Conflict):
    """The generations of a day or hour have left, so its sums cannot be made again."""

    error_type = "rows_archived"


def require_rows(begin: datetime) -> None:
    """Raises :class:`RowsArchived` for a time of which generations were archived."""
    until = archived_until()
    if until is None:
        return
    border = until.astimezone(UTC).date()
    if begin >= until and (begin >= end_of(border) or not _lacks_rows(border)):
        return
    gone = f"before {until:%Y-%m-%d}" if begin < until else f"of {border}"
    raise RowsArchived(
        f"Generations {gone} are archived, so their sums cannot be made again. Nothing was changed."
    )


def archived_days(
    first: date | None, last: date | None, organization_id: uuid.UUID | None = None
) -> list[date]:
    """Returns the days of a range, the last included, of which generations have left."""
    until = archived_until()
    if until is None:
        return []
    border = until.astimezone(UTC).date()
    rows = DailyUsage.objects.filter(by_end_user=False, day_id__lte=border)
    if first is not None:
        rows = rows.filter(day_id__gte=first)
    if last is not None:
        rows = rows.filter(day_id__lte=last)
    if organization_id is not None:
        rows = rows.filter(organization_id=organization_id)
    days = list(rows.order_by("day_id").values_list("day_id", flat=True).distinct())
    if border in days and not _lacks_rows(border, organization_id):
        days.remove(border)
    return days


def _lacks_rows(day: date, organization_id: uuid.UUID | None = None) -> bool:
    """Returns whether the sums of a day count generations that are not there.

    A generation leaves by the second in its id, which is a little earlier than its stamp: one of
    the first moments of a day leaves with the day before.
    """
    owner = {} if organization_id is None else {"organization_id": organization_id}
    sums = DailyUsage.objects.filter(day_id=day, by_end_user=False, **owner)
    rows = Generation.objects.created(midnight(day), end_of(day)).filter(**owner)
    return (sums.aggregate(total=Sum("requests"))["total"] or 0) > rows.count()


def sum_days_again(first: date, last: date) -> list[date]:
    """Deletes the sums of days, and sums the completed ones again; returns those days.

    The sums of a day with a running generation are stored later, by the duty. Raises
    :class:`RowsArchived`.
    """
    require_rows(midnight(first))
    days = {"first": first, "last": last}
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(_DELETE_SUMS, days)
            cursor.execute(_DELETE_DAYS, days)
        due = [day for day in _due(read_now()) if first <= day <= last]
        return [day for day in due if _roll_up(day)]


def _due(now: datetime) -> Iterator[date]:
    known = set(UsageDay.objects.values_list("day", flat=True))
    begin = find_first()
    if begin is None:
        return
    first, end = begin.astimezone(UTC).date(), (now - _GRACE).astimezone(UTC).date()
    for number in range((end - first).days):
        if (day := first + number * _DAY) not in known:
            yield day


def find_first() -> datetime | None:
    """Returns when the first generation was admitted, by the order of the ids."""
    return Generation.objects.order_by("pk").values_list("created_at", flat=True).first()


def span_values(begin: datetime, end: datetime) -> dict[str, Any]:
    """Returns the parameters of statements over the generations from one time to another."""
    return {"begin": begin, "end": end, "first_id": first_id(begin), "last_id": last_id(end)}


def _roll_up(day: date) -> bool:
    span = span_values(midnight(day), end_of(day))
    return bool(fetch_rows(_ROLL_UP, {"day": day, **span}))
