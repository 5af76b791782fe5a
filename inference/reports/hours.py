"""Stores the sums of completed hours, with their shares, spending and errors."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.db import connection, transaction
from django.db.models import Q

from config.partitions.tables import list_partitions, read_now
from config.sql import fetch_rows
from inference.models import HourlyFailure, HourlyShare, HourlySpending, HourlyUsage
from inference.reports.endpoint_hours import forget_endpoints, sum_endpoints
from inference.reports.rollups import RowsArchived, find_first, require_rows, span_values
from inference.watch.attempts import FAILURES

HOUR: Final = timedelta(hours=1)
# An hour is summed this long after its end: a statement that stores a generation may commit later
# than its stamp, and workers of an older release stamp by the clock of their host.
_SLACK: Final = timedelta(hours=1)

# A tenant states the price of its own models, and its servers the tokens: these must not keep the
# sums of others from being stored, so a sum of them ends at the range of its column.
SUMS: Final = """
    count(*) AS requests, count(*) FILTER (WHERE status = 'failed') AS failed,
    greatest(least(
        coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)), 0),
        9223372036854775807
    ), 0) AS tokens,
    coalesce(sum(cost_nano), 0) AS cost_nano,
    least(coalesce(sum(upstream_cost_nano), 0), 9223372036854775807) AS upstream_nano,
    coalesce(sum(latency_ms), 0) AS latency_ms, count(latency_ms) AS timed
"""

# Only the index of the primary key is in the order of time.
_ROLL_UP: Final = """
WITH summed AS (
    SELECT date_trunc('hour', created_at, 'UTC') AS hour, {sums}
    FROM inference_generation
    WHERE id >= %(first_id)s AND id < %(last_id)s
        AND created_at >= %(begin)s AND created_at < %(end)s
    GROUP BY 1
)
INSERT INTO inference_hourlyusage
    (hour, requests, failed, tokens, cost_nano, upstream_nano, latency_ms, timed)
SELECT hour, coalesce(requests, 0), coalesce(failed, 0), coalesce(tokens, 0),
       coalesce(cost_nano, 0), coalesce(upstream_nano, 0), coalesce(latency_ms, 0),
       coalesce(timed, 0)
FROM generate_series(%(begin)s, %(end)s - interval '1 hour', interval '1 hour') AS hour
LEFT JOIN summed USING (hour)
ON CONFLICT DO NOTHING
""".replace("{sums}", SUMS)
# Charts of all organizations reach 30 days back, and those of one 24 hours.
KEPT: Final = timedelta(days=32)
KEPT_OF_KEYS: Final = timedelta(days=3)
# Unusual spending is judged by eight weeks before yesterday.
KEPT_OF_SPENDING: Final = timedelta(weeks=8, days=2)
_SHARE: Final = """
INSERT INTO inference_hourlyshare (
    hour, {owners}, endpoint_id, model, provider_name, requests, failed, tokens, cost_nano,
    upstream_nano, latency_ms, timed
)
SELECT date_trunc('hour', created_at, 'UTC'), {owners},
       coalesce(private_endpoint_id, model_endpoint_id), model, provider_name, {sums}
FROM inference_generation
WHERE id >= %(first_id)s AND id < %(last_id)s
    AND created_at >= greatest(%(begin)s, now() - %(kept)s) AND created_at < %(end)s
GROUP BY date_trunc('hour', created_at, 'UTC'), {owners},
         coalesce(private_endpoint_id, model_endpoint_id), model, provider_name
""".replace("{sums}", SUMS)
_SHARE_OF_ENDPOINTS: Final = _SHARE.replace(" {owners},", "")
_SHARE_OF_KEYS: Final = _SHARE.replace("{owners}", "organization_id, workspace_id, api_key_id")
_SUM_SPENDING: Final = """
INSERT INTO inference_hourlyspending (organization_id, hour, cost_nano)
SELECT organization_id, date_trunc('hour', created_at, 'UTC'), sum(cost_nano)
FROM inference_generation
WHERE id >= %(first_id)s AND id < %(last_id)s
    AND created_at >= greatest(%(begin)s, now() - %(kept)s) AND created_at < %(end)s
    AND cost_nano > 0
GROUP BY 1, 2
"""
_DROP_SPENDING: Final = "DELETE FROM inference_hourlyspending WHERE hour < now() - %(kept)s"
# Few generations have an attempt that failed: those that did not complete, and those that were
# tried more than once.
_SUM_FAILURES: Final = """
WITH recent AS (
    SELECT created_at, status, error_type, attempts, provider_name
    FROM inference_generation
    WHERE id >= %(first_id)s AND id < %(last_id)s
        AND created_at >= greatest(%(begin)s, now() - %(kept)s) AND created_at < %(end)s
        AND status <> 'pending' AND (status <> 'completed' OR jsonb_array_length(attempts) > 1)
),
failures AS ({failures})
INSERT INTO inference_hourlyfailure
    (hour, provider_name, error_type, attempts, requests, last_at)
SELECT date_trunc('hour', created_at, 'UTC'), provider_name, error_type,
       sum(attempts), sum(requests), max(created_at)
FROM failures GROUP BY 1, 2, 3
""".replace("{failures}", FAILURES)
_DROP_FAILURES: Final = "DELETE FROM inference_hourlyfailure WHERE hour < now() - %(kept)s"
_MARK: Final = """
UPDATE inference_hourlyusage SET is_detailed = TRUE
WHERE hour >= greatest(%(begin)s, now() - %(kept)s) AND hour < %(end)s
"""
_DROP: Final = """
DELETE FROM inference_hourlyshare
WHERE hour < now() - %(kept)s OR (organization_id IS NOT NULL AND hour < now() - %(kept_of_keys)s)
"""
_OLDEST_PENDING: Final = """
SELECT min(g.created_at)
FROM inference_journal j JOIN inference_generation g ON g.id = j.generation_id
WHERE g.id >= (SELECT min(generation_id) FROM inference_journal)
"""
# Only the duty and another re-sum wait for the lock.
_LOCK: Final = "LOCK TABLE inference_hourlyusage IN SHARE ROW EXCLUSIVE MODE"


def hour_of(moment: datetime) -> datetime:
    """Returns the beginning of a moment's hour."""
    return moment.replace(minute=0, second=0, microsecond=0)


def summed_until() -> datetime | None:
    """Returns the end of the last hour with stored sums."""
    last = HourlyUsage.objects.order_by("-hour").values_list("hour", flat=True).first()
    return None if last is None else last + HOUR


def roll_up_hours() -> int:
    """Sums the completed hours before the first running generation; returns the number of hours.

    Several processes may run it at once. It waits for a re-sum, which may delete the last hours:
    sums behind a gap would hide the gap for ever.
    """
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(_LOCK)
        begin = summed_until() or find_first()
        if begin is None:
            return 0
        end = _end_of_sums()
        sum_endpoints(end)
        return _sum_hours(hour_of(begin), end)


def sum_hours_again(begin: datetime, end: datetime) -> int:
    """Sums the hours from ``begin`` to ``end`` again; returns the number of hours.

    Sums of hours that are not over, or have a running generation, are deleted: the duty stores them
    later. Raises :class:`RowsArchived`.
    """
    require_rows(begin)
    _require_hours(begin)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(_LOCK)
        first, until = find_first(), summed_until()
        if first is None or until is None:
            return 0
        final = _end_of_sums()
        # The rows stay without gaps.
        begin = min(max(begin, hour_of(first)), until)
        again = Q(hour__gte=begin, hour__lt=end) | Q(hour__gte=final)
        HourlyUsage.objects.filter(again).delete()
        HourlyShare.objects.filter(again).delete()
        HourlySpending.objects.filter(again).delete()
        HourlyFailure.objects.filter(again).delete()
        forget_endpoints(begin)
        return _sum_hours(begin, min(end, final))


def _require_hours(begin: datetime) -> None:
    """Raises :class:`RowsArchived` for hours whose partition has left."""
    first = list_partitions(HourlyUsage.partitioning)[0].begin
    if first is not None and begin < first:
        raise RowsArchived(
            f"The sums of the hours before {first:%Y-%m-%d} are archived. Nothing was changed."
        )


def _end_of_sums() -> datetime:
    """Returns the end of the last hour whose generations have ended, by the database's clock."""
    [[pending]] = fetch_rows(_OLDEST_PENDING)
    end = hour_of(read_now() - _SLACK)
    return end if pending is None else min(end, hour_of(pending))


def _sum_hours(begin: datetime, end: datetime) -> int:
    """Sums the hours from ``begin`` to ``end``; returns the number of rows."""
    if end <= begin:
        return 0
    with connection.cursor() as cursor:
        span = span_values(begin, end)
        cursor.execute(_ROLL_UP, span)
        count = int(cursor.rowcount)
        _store_shares(cursor, span)
        return count


def _store_shares(cursor: Any, span: dict[str, Any]) -> None:
    """Stores the shares of the hours of a span, and deletes those that no chart reads any more."""
    cursor.execute(_SHARE_OF_ENDPOINTS, {**span, "kept": KEPT})
    cursor.execute(_SHARE_OF_KEYS, {**span, "kept": KEPT_OF_KEYS})
    cursor.execute(_SUM_SPENDING, {**span, "kept": KEPT_OF_SPENDING})
    cursor.execute(_DROP_SPENDING, {"kept": KEPT_OF_SPENDING})
    cursor.execute(_SUM_FAILURES, {**span, "kept": KEPT})
    cursor.execute(_DROP_FAILURES, {"kept": KEPT})
    cursor.execute(_MARK, {**span, "kept": KEPT})
    cursor.execute(_DROP, {"kept": KEPT, "kept_of_keys": KEPT_OF_KEYS})
