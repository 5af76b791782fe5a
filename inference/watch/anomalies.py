"""Finds organizations that spend unusually much, by what they spent in the same hours before.

The spending of today counts until the last summed hour, and is compared with that of the same
hours of the same weekday. All figures come from stored sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from statistics import median
from typing import Any, Final
from uuid import UUID

from django.core.cache import cache

from config.clocks.clock import clock
from config.console.formatting import short_dollars
from config.sql import fetch_rows
from inference.reports.rollups import midnight

LEAST_NANO: Final = 10_000_000_000
"""Less than 10 USD is never unusual."""
RATIO: Final = 3
"""Spending is unusual from three times the usual on."""
LEAST_SHARE: Final = 4
"""Less than a quarter of what the whole weekday usually costs is never unusual: a job may begin
some hours earlier than usual."""
WEEKS: Final = 8
LEAST_WEEKS: Final = 4
"""The weeks before that are compared, and how many of them there must be."""
_MOST: Final = 1_000
"""The days of organizations that one call looks at closely."""
_CACHED_SECONDS: Final = 300
_DAY: Final = timedelta(days=1)

# ``risen`` leaves out by one pass over the sums, for all organizations together, what cannot be
# unusual: days below the ratio in each of the last five weeks, more than half of eight. Only the
# rest is looked at closely.
# The days without a row of an organization count as zero, from its first day with usage on. A day
# whose hours do not make up its sum was summed in part by an earlier release; it counts whole.
_READ: Final = """
WITH summed AS (
    SELECT max(hour) + interval '1 hour' AS until FROM inference_hourlyusage
),
spent AS (
    SELECT organization_id, date_trunc('day', hour, 'UTC') AS day, sum(cost_nano) AS nano
    FROM inference_hourlyspending
    WHERE hour >= %(begin)s {and_organization}
    GROUP BY 1, 2
    HAVING sum(cost_nano) >= %(least)s
),
timed AS (
    SELECT s.*, least(until, day + interval '24 hours') AS until
    FROM spent AS s CROSS JOIN summed
),
earlier AS (
    SELECT h.organization_id, t.day, week, sum(h.cost_nano) AS nano
    FROM (SELECT DISTINCT day, until FROM timed) AS t
    CROSS JOIN generate_series(1, %(weeks)s / 2 + 1) AS week
    JOIN inference_hourlyspending AS h
        ON h.hour >= t.day - week * interval '168 hours'
        AND h.hour < t.until - week * interval '168 hours' {and_organization}
    GROUP BY 1, 2, 3
),
risen AS (
    SELECT t.* FROM timed AS t
    LEFT JOIN earlier AS e ON e.organization_id = t.organization_id AND e.day = t.day
        AND e.nano * %(ratio)s > t.nano + %(ratio)s
    GROUP BY t.organization_id, t.day, t.nano, t.until
    HAVING count(e.week) <= %(weeks)s / 2
    ORDER BY t.nano DESC, t.organization_id, t.day
    LIMIT %(most)s
)
SELECT t.organization_id, o.name, (t.day AT TIME ZONE 'UTC')::date, t.until, t.nano,
    before.by_then, before.in_all
FROM risen AS t JOIN accounts_organization AS o ON o.id = t.organization_id
CROSS JOIN LATERAL (
    SELECT
        coalesce(array_agg(CASE WHEN hours.in_all = days.nano THEN hours.by_then ELSE days.nano END
        ), '{}') AS by_then,
        coalesce(array_agg(days.nano), '{}') AS in_all
    FROM (
        SELECT u.day, coalesce((
            SELECT sum(d.cost_nano) FROM inference_dailyusage AS d
            WHERE d.organization_id = t.organization_id AND NOT d.by_end_user AND d.day = u.day
        ), 0) AS nano
        FROM inference_usageday AS u
        WHERE u.day = ANY(ARRAY(
            SELECT (t.day AT TIME ZONE 'UTC')::date - 7 * n FROM generate_series(1, %(weeks)s) AS n
        )) AND u.day >= (
            SELECT min(d.day) FROM inference_dailyusage AS d
            WHERE d.organization_id = t.organization_id AND NOT d.by_end_user
        )
    ) AS days
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(h.cost_nano), 0) AS in_all, coalesce(sum(h.cost_nano) FILTER (
            WHERE h.hour < days.day::timestamp AT TIME ZONE 'UTC' + (t.until - t.day)
        ), 0) AS by_then
        FROM inference_hourlyspending AS h
        WHERE h.organization_id = t.organization_id
            AND h.hour >= days.day::timestamp AT TIME ZONE 'UTC'
            AND h.hour < days.day::timestamp AT TIME ZONE 'UTC' + interval '24 hours'
    ) AS hours
) AS before
"""
_OF_ONE: Final = "AND organization_id = %(organization_id)s"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """The spending of an organization on a UTC day, and what it usually spends by then.

    ``until`` is the end of the last hour that is counted, on that weekday as on the earlier ones.
    """

    organization_id: UUID
    name: str
    day: date
    until: datetime
    spent_nano: int
    usual_nano: int

    @property
    def is_over(self) -> bool:
        """Whether all hours of the day are counted."""
        return self.until >= midnight(self.day) + _DAY

    @property
    def until_text(self) -> str:
        """The time of day until which the spending is counted, ``24:00`` for a whole day."""
        return "24:00" if self.is_over else f"{self.until.astimezone(UTC):%H:%M}"

    @property
    def text(self) -> str:
        """Says how much was spent, until when, and how much is usual."""
        until, by_then = ("", "") if self.is_over else (f" until {self.until_text} UTC", " by then")
        usual = short_dollars(self.usual_nano) if self.usual_nano else "nothing"
        return (
            f"{short_dollars(self.spent_nano)} on {self.day:%A, %B} {self.day.day}{until}; usually "
            f"{usual}{by_then} on a {self.day:%A}"
        )


def find_usual(spent_nano: int, by_then: Sequence[int], in_all: Sequence[int]) -> int | None:
    """Returns the usual spending if a day's is unusually high by it, else ``None``; pure.

    ``by_then`` are the sums of the same hours of the same weekday of earlier weeks, and ``in_all``
    those of the whole days. Their medians are usual, because one day that was unusual itself does
    not move them.
    """
    if spent_nano < LEAST_NANO or len(by_then) < LEAST_WEEKS:
        return None
    usual = int(median(by_then))
    least = max(RATIO * usual, int(median(in_all)) // LEAST_SHARE)
    return usual if spent_nano >= least else None


def find_anomalies(
    organization_id: UUID | None = None, *, now: datetime | None = None
) -> list[Anomaly]:
    """Returns the unusual spending of today and yesterday, the highest above the usual first.

    Looks at every organization, or at one; one query. If more than a thousand days have risen above
    the ratio, it returns those with the highest spending.
    """
    begin = midnight(((now or clock.now()) - _DAY).astimezone(UTC).date())
    values: dict[str, Any] = {
        "begin": begin, "least": LEAST_NANO, "most": _MOST, "weeks": WEEKS, "ratio": RATIO,
        "organization_id": organization_id,
    }  # fmt: skip
    statement = _READ.replace("{and_organization}", _OF_ONE if organization_id else "")
    found = []
    for key, name, day, until, spent, by_then, in_all in fetch_rows(statement, values):
        usual = find_usual(int(spent), [*map(int, by_then)], [*map(int, in_all)])
        if usual is not None:
            found.append(Anomaly(key, name, day, until, int(spent), usual))
    return sorted(found, key=lambda one: (one.usual_nano - one.spent_nano, one.name, one.day))


def read_anomalies() -> list[Anomaly]:
    """Returns the anomalies of all organizations, which are at most five minutes old."""
    found: list[Anomaly] | None = cache.get("console:anomalies")
    if found is None:
        found = find_anomalies()
        cache.set("console:anomalies", found, _CACHED_SECONDS)
    return found
