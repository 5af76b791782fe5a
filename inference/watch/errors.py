"""Errors by provider and type over a period, from the sums of hours and the latest requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.core.cache import cache

from config.clocks.clock import clock
from config.console.charts import Axis, Chart
from config.database.replica.reading import answer
from config.sql import fetch_rows
from inference.ids import first_id
from inference.reports.hours import summed_until
from inference.reports.usage.sums import Period
from inference.watch.attempts import FAILURES, MOST_ROWS

MOST_SHOWN: Final = 200
_CACHED_SECONDS: Final = 15

_READ: Final = """
WITH latest AS MATERIALIZED (
    SELECT created_at, status, error_type, attempts, provider_name
    FROM inference_generation
    WHERE id >= %(first_id)s AND created_at >= %(left)s AND status <> 'pending'
    ORDER BY id DESC
    LIMIT %(most)s
),
recent AS (
    SELECT * FROM latest WHERE status <> 'completed' OR jsonb_array_length(attempts) > 1
),
failures AS ({failures}),
found AS (
    SELECT date_trunc(%(step)s, hour, 'UTC') AS slot, provider_name, error_type, attempts,
        requests, last_at
    FROM inference_hourlyfailure WHERE hour >= %(begin)s AND hour < %(left)s
    UNION ALL
    SELECT date_trunc(%(step)s, created_at, 'UTC'), provider_name, error_type, attempts,
        requests, created_at
    FROM failures
)
SELECT slot, provider_name, error_type, sum(attempts), sum(requests), max(last_at),
    (SELECT count(*) FROM latest), (SELECT min(created_at) FROM latest)
FROM found GROUP BY GROUPING SETS ((slot), (provider_name, error_type))
""".replace("{failures}", FAILURES)


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The errors of one provider and type.

    ``attempts`` failed; another candidate may have served the request. ``requests`` failed at last.
    """

    provider: str
    error_type: str
    attempts: int
    requests: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """The errors of a period, the most frequent first.

    ``hidden`` is the number of rows that are not shown. ``cut_at`` is since when the requests of
    the hours that are not summed yet are counted, if they are too many to count all of them.
    """

    rows: Sequence[ErrorRow]
    hidden: int
    chart: Chart
    read_at: datetime
    cut_at: datetime | None


def read_errors(period: Period) -> ErrorReport:
    """Returns the errors of a period; they are at most 15 seconds old."""
    name = f"console:errors:{period.name}"
    found: ErrorReport | None = cache.get(name)
    if found is None:
        found = answer(lambda: build_report(period))
        cache.set(name, found, _CACHED_SECONDS)
    return found


def build_report(period: Period) -> ErrorReport:
    """Reads the errors of a period with two queries."""
    now = clock.now()
    begin = period.began_at(now)
    left = max(summed_until() or begin, begin)
    slots = period.slots(now)
    bars = dict.fromkeys(slots, 0)
    rows: list[ErrorRow] = []
    cut_at = None
    values: dict[str, Any] = {
        "begin": begin, "left": left, "first_id": first_id(left), "most": MOST_ROWS,
        "step": period.step,
    }  # fmt: skip
    found = fetch_rows(_READ, values)
    for slot, provider, kind, attempts, requests, last_at, count, first in found:
        if count == MOST_ROWS:
            cut_at = first
        if slot is None:
            rows.append(ErrorRow(provider, kind, int(attempts), int(requests), last_at))
        else:
            # A clock that was wrong may have stamped a generation in the future.
            bars[min(max(slot, slots[0]), slots[-1])] += int(attempts)
    rows.sort(key=lambda row: (-row.attempts, -row.requests, row.provider, row.error_type))
    axis = Axis([slot.strftime(period.pattern) for slot in slots])
    failed = list(bars.values())
    chart = axis.plot("Failed attempts", f"{sum(failed):,}", failed, "{:,}".format)
    return ErrorReport(rows[:MOST_SHOWN], len(rows[MOST_SHOWN:]), chart, now, cut_at)
