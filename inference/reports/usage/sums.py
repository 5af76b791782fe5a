"""Sums the usage of a part of the traffic over a period, from stored sums wherever there are any.

Days come from the daily sums, and recent hours from the shares of hours. Only the generations that
neither contains are read themselves, as in the report of activity: those of about two hours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from config.clocks.clock import clock
from config.sql import fetch_rows
from inference.ids import first_id
from inference.models import HourlyUsage, UsageDay
from inference.reports.hours import HOUR, hour_of
from inference.reports.rollups import midnight

_DAY: Final = timedelta(days=1)
# The shares of keys are kept for a day more than this.
_RECENT: Final = timedelta(days=2)
_HOURS_OF_DAY: Final = 24


@dataclass(frozen=True, slots=True)
class Period:
    """A choice of the component: its length, and the length of a bar, ``hour`` or ``day``."""

    name: str
    title: str
    length: timedelta
    step: str
    pattern: str

    @property
    def bar(self) -> timedelta:
        return HOUR if self.step == "hour" else _DAY

    def began_at(self, now: datetime) -> datetime:
        """Returns the beginning of the first bar; the last bar ends in the future."""
        if self.step == "hour":
            return hour_of(now) + HOUR - self.length
        return midnight(now.date()) + _DAY - self.length

    def slots(self, now: datetime) -> list[datetime]:
        """Returns the beginnings of the bars."""
        begin = self.began_at(now)
        return [begin + number * self.bar for number in range(self.length // self.bar)]


PERIODS: Final = {
    period.name: period
    for period in (
        Period("24h", "24 hours", _DAY, "hour", "%b %d %H:%M UTC"),
        Period("7d", "7 days", 7 * _DAY, "day", "%b %d UTC"),
        Period("30d", "30 days", 30 * _DAY, "day", "%b %d UTC"),
    )
}


@dataclass(frozen=True, slots=True)
class UsageScope:
    """A part of the traffic: that of one organization or of a part of it, or of all organizations.

    ``columns`` are the columns that the rows must have. All organizations together can be narrowed
    to an endpoint, a model or a provider, one organization to a workspace, a key, or an end user.
    """

    columns: Mapping[str, Any]

    @property
    def organization_id(self) -> UUID | None:
        return self.columns.get("organization_id")

    @property
    def is_of_end_user(self) -> bool:
        return "end_user" in self.columns


class Sums(NamedTuple):
    """The sums of a bar or of a part; amounts are in nano-USD."""

    requests: int = 0
    failed: int = 0
    cost_nano: int = 0
    upstream_nano: int = 0
    latency_ms: int = 0
    timed: int = 0
    tokens: int = 0

    @property
    def mean_latency_ms(self) -> int:
        return self.latency_ms // self.timed if self.timed else 0

    def __add__(self, other: object) -> Sums:
        assert isinstance(other, Sums)
        return Sums(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class PeriodUsage:
    """The usage of a period: by bar, model, provider and key; a key's id is text."""

    slots: Sequence[datetime]
    bars: Sequence[Sums]
    models: Mapping[str, Sums]
    providers: Mapping[str, Sums]
    keys: Mapping[str, Sums]

    @property
    def total(self) -> Sums:
        return sum(self.bars, Sums())


# The parts in braces are conditions on fixed columns. A column that a table lacks is null.
_READ: Final = """
WITH used AS (
    SELECT date_trunc(%(step)s, day::timestamp AT TIME ZONE 'UTC', 'UTC') AS slot,
           {key}, model, provider_name,
           requests, failed, cost_nano, upstream_nano, latency_ms, timed
    FROM inference_dailyusage
    WHERE by_end_user = %(by_end_user)s AND day = ANY(%(days)s::date[]) AND {columns}
    UNION ALL
    SELECT date_trunc(%(step)s, hour, 'UTC'), {key}, model, provider_name,
           requests, failed, cost_nano, upstream_nano, latency_ms, timed
    FROM inference_hourlyshare
    WHERE hour = ANY(%(hours)s::timestamptz[]) AND {columns_of_shares}
    UNION ALL
    SELECT date_trunc(%(step)s, created_at, 'UTC'), {key}, model, provider_name,
           1, (status = 'failed')::int, cost_nano, upstream_cost_nano,
           coalesce(latency_ms, 0), (latency_ms IS NOT NULL)::int
    FROM inference_generation
    WHERE id >= %(first_id)s AND created_at >= %(left)s AND status <> 'pending'
        AND (created_at AT TIME ZONE 'UTC')::date <> ALL(%(days)s::date[])
        AND date_trunc('hour', created_at, 'UTC') <> ALL(%(hours)s::timestamptz[])
        AND {columns_of_generations}
)
SELECT GROUPING(slot, model, provider_name, api_key_id), slot, model, provider_name, api_key_id,
       sum(requests), sum(failed), sum(cost_nano), sum(upstream_nano), sum(latency_ms), sum(timed)
FROM used
GROUP BY GROUPING SETS ((slot), (model), (provider_name), (api_key_id))
"""
# The results of GROUPING for each set.
_BY_SLOT, _BY_MODEL, _BY_PROVIDER, _BY_KEY = 0b0111, 0b1011, 0b1101, 0b1110
_COLUMNS: Final = frozenset(
    ("organization_id", "workspace_id", "api_key_id", "end_user", "endpoint_id", "model",
     "provider_name")
)  # fmt: skip
_ENDPOINT: Final = "(private_endpoint_id = %(endpoint_id)s OR model_endpoint_id = %(endpoint_id)s)"


def read_usage(scope: UsageScope, period: Period, now: datetime | None = None) -> PeriodUsage:
    """Returns the usage of a part of the traffic, with three queries."""
    now = now or clock.now()
    begin = period.began_at(now)
    sources = _find_sources(scope, period, begin, now)
    values: dict[str, Any] = {
        **scope.columns,
        "step": period.step,
        "by_end_user": scope.is_of_end_user,
        "days": sources.days,
        "hours": sources.hours,
        "left": sources.left,
        "first_id": first_id(sources.left),
    }
    slots = period.slots(now)
    bars = dict.fromkeys(slots, Sums())
    parts: dict[int, dict[str, Sums]] = {_BY_MODEL: {}, _BY_PROVIDER: {}, _BY_KEY: {}}
    found = fetch_rows(_write_statement(scope), values)
    for kind, slot, model, provider, key, *sums in found:
        if kind == _BY_SLOT:
            # A clock that was wrong may have stamped a generation in the future.
            place = min(slot, slots[-1])
            bars[place] += Sums(*map(int, sums))
        elif (name := model or provider or key) is not None:
            parts[kind][str(name)] = Sums(*map(int, sums))
    return PeriodUsage(
        slots,
        [bars[slot] for slot in slots],
        parts[_BY_MODEL],
        parts[_BY_PROVIDER],
        parts[_BY_KEY],
    )


class _Sources(NamedTuple):
    """The days and hours with stored sums, and the time from which generations are read."""

    days: list[date]
    hours: list[datetime]
    left: datetime


def _find_sources(scope: UsageScope, period: Period, begin: datetime, now: datetime) -> _Sources:
    """Chooses for every hour of a period the table that is read."""
    hours = set(
        HourlyUsage.objects.filter(hour__gte=begin, is_detailed=True).values_list("hour", flat=True)
    )
    days: set[date] = set()
    if period.step == "day":
        days = set(UsageDay.objects.filter(day__gte=begin.date()).values_list("day", flat=True))
    if scope.is_of_end_user:
        hours = set()
    elif scope.organization_id is not None:
        hours = {hour for hour in hours if hour >= now - _RECENT and hour.date() not in days}
    else:
        # The shares of endpoints are far fewer rows than the daily sums of all keys.
        whole = {
            day
            for day in days
            if all(midnight(day) + number * HOUR in hours for number in range(_HOURS_OF_DAY))
        }
        days -= whole
        hours = {hour for hour in hours if hour.date() not in days}
    left = begin
    while left <= now and (left in hours or left.date() in days):
        left += HOUR
    return _Sources(sorted(days), sorted(hours), left)


def _write_statement(scope: UsageScope) -> str:
    """Returns the statement with the conditions of a scope; every value is a parameter."""
    names = list(scope.columns)
    assert _COLUMNS.issuperset(names)
    plain = " AND ".join(f"{name} = %({name})s" for name in names)
    key = "api_key_id" if scope.organization_id is not None else "NULL::uuid AS api_key_id"
    shares = plain if scope.organization_id is not None else f"organization_id IS NULL AND {plain}"
    if scope.is_of_end_user:
        # The shares of hours do not know end users, and none of their hours is asked for.
        shares = "organization_id = %(organization_id)s"
    parts = {
        "{columns_of_shares}": shares,
        "{columns_of_generations}": plain.replace("endpoint_id = %(endpoint_id)s", _ENDPOINT),
        "{columns}": plain,
        "{key}": key,
    }
    statement = _READ
    for name, text in parts.items():
        statement = statement.replace(name, text)
    return statement
