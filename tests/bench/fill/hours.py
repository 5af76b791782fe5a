"""The distribution of traffic over the hours of a month."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour, or its part until now. ``share`` is the part of all traffic up to its end."""

    begin: datetime
    end: datetime
    share: float


def spread_hours(begin: datetime, now: datetime) -> list[Hour]:
    """Returns the hours until now. Working hours on weekdays have most of the traffic."""
    weights: list[tuple[datetime, datetime, float]] = []
    while begin < now:
        end = min(begin + _HOUR, now)
        weight = (end - begin) / _HOUR * (2 + 6 * (7 <= begin.hour < 19) + (begin.hour == 12))
        weights.append((begin, end, weight / (3 if begin.weekday() >= 5 else 1)))
        begin = end
    total = sum(weight for *_, weight in weights)
    hours = []
    passed = 0.0
    for begin, end, weight in weights:
        passed += weight
        hours.append(Hour(begin, end, min(passed / total, 1.0)))
    return hours


def count_rows(hours: Sequence[Hour], day: slice, wanted: int) -> dict[str, list[Any]]:
    """Returns the parameters for the hours of one day when a month has ``wanted`` rows."""
    until = [0, *(round(wanted * hour.share) for hour in hours)]
    return {
        "begins": [hour.begin for hour in hours[day]],
        "lasts": [hour.end - hour.begin for hour in hours[day]],
        "made": [until[place + 1] - until[place] for place in range(day.start, day.stop)],
        "before": [until[place] for place in range(day.start, day.stop)],
    }
