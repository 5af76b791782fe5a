"""Finds organizations that spend unusually much, by what they spent on the same weekday before.

The spending of today counts until the last summed hour and is compared with whole days, so that a
day that goes as usual is never unusual in the morning. All figures come from stored sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from statistics import median
from typing import Any, Final
from uuid import UUID

from django.core.cache import cache
from django.db import connection

from config.clocks.clock import clock
from config.console.formatting import short_dollars
from inference.reports.rollups import midnight

LEAST_NANO: Final = 10_000_000_000
"""A day with less than 10 USD is never unusual."""
RATIO: Final = 3
"""A day is unusual from three times the usual spending on."""
WEEKS: Final = 8
LEAST_WEEKS: Final = 4
"""The weeks before that are compared, and how many of them there must be."""
_MOST: Final = 100
_CACHED_SECONDS: Final = 300
_DAY: Final = timedelta(days=1)
_HOUR: Final = timedelta(hours=1)

# The days without a row of an organization count as zero, from its first day with usage on.
_READ: Final = """
WITH spent AS (
    SELECT organization_id, (hour AT TIME ZONE 'UTC')::date AS day, sum(cost_nano) AS nano,
           max(hour) AS last
    FROM inference_hourlyshare
    WHERE organization_id IS NOT NULL AND hour >= %(begin)s {and_organization}
    GROUP BY 1, 2
    HAVING sum(cost_nano) >= %(least)s
    ORDER BY nano DESC
    LIMIT %(most)s
)
SELECT s.organization_id, o.name, s.day, s.nano, s.last, ARRAY(
    SELECT coalesce((
        SELECT sum(d.cost_nano) FROM inference_dailyusage d
        WHERE d.organization_id = s.organization_id AND NOT d.by_end_user AND d.day = u.day
    ), 0)
    FROM inference_usageday u
    WHERE u.day = ANY(ARRAY(SELECT s.day - 7 * n FROM generate_series(1, %(weeks)s) AS n))
        AND u.day >= (
            SELECT min(d.day) FROM inference_dailyusage d
            WHERE d.organization_id = s.organization_id AND NOT d.by_end_user
        )
)
FROM spent s JOIN accounts_organization o ON o.id = s.organization_id
"""
_OF_ONE: Final = "AND organization_id = %(organization_id)s"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """The spending of an organization on a UTC day, and what it usually spends on that weekday.

    ``until`` is the end of the last hour that is counted.
    """

    organization_id: UUID
    name: str
    day: date
    until: datetime
    spent_nano: int
    usual_nano: int

    @property
    def text(self) -> str:
        """Says how much was spent, until when, and how much is usual."""
        is_over = self.until >= midnight(self.day) + _DAY
        until = "" if is_over else f" until {self.until.astimezone(UTC):%H:%M} UTC"
        usual = short_dollars(self.usual_nano) if self.usual_nano else "nothing"
        return (
            f"{short_dollars(self.spent_nano)} on {self.day:%A, %B} {self.day.day}{until}; usually "
            f"{usual} on a {self.day:%A}"
        )


def find_usual(spent_nano: int, before: Sequence[int]) -> int | None:
    """Returns the usual spending if a day's is unusually high by it, else ``None``; pure.

    ``before`` are the sums of the same weekday of earlier weeks. Their median is the usual
    spending, because one day that was unusual itself does not move it.
    """
    if spent_nano < LEAST_NANO or len(before) < LEAST_WEEKS:
        return None
    usual = int(median(before))
    return usual if spent_nano >= RATIO * usual else None


def find_anomalies(
    organization_id: UUID | None = None, *, now: datetime | None = None
) -> list[Anomaly]:
    """Returns the unusual spending of today and yesterday, the highest above the usual first.

    Looks at the hundred days with the highest spending, or at those of one organization; one query.
    """
    begin = midnight(((now or clock.now()) - _DAY).astimezone(UTC).date())
    values: dict[str, Any] = {
        "begin": begin, "least": LEAST_NANO, "most": _MOST, "weeks": WEEKS,
        "organization_id": organization_id,
    }  # fmt: skip
    statement = _READ.replace("{and_organization}", _OF_ONE if organization_id else "")
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        rows = cursor.fetchall()
    found = []
    for key, name, day, spent, last, before in rows:
        usual = find_usual(int(spent), [int(each) for each in before])
        if usual is not None:
            found.append(Anomaly(key, name, day, last + _HOUR, int(spent), usual))
    return sorted(found, key=lambda one: (one.usual_nano - one.spent_nano, one.name, one.day))


def read_anomalies() -> list[Anomaly]:
    """Returns the anomalies of all organizations, which are at most five minutes old."""
    found: list[Anomaly] | None = cache.get("console:anomalies")
    if found is None:
        found = find_anomalies()
        cache.set("console:anomalies", found, _CACHED_SECONDS)
    return found
