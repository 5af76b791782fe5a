"""The usage component of the console: numbers, charts and rankings of a part of the traffic.

A page has it as its panel ``usage``, and says which part of the traffic its object is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

from django.core.cache import cache
from django.http import HttpRequest
from django.urls import reverse

from accounts.models import ApiKey
from config.clocks.clock import clock
from config.console.charts import Axis, Card, Chart, RankRow, Top
from config.console.formatting import nano_dollars, short_dollars
from inference.reports.usage.sums import PERIODS, Period, PeriodUsage, Sums, UsageScope, read_usage

_PARAMETER: Final = "usage"
_PERIOD: Final = PERIODS["24h"]
_CACHED_SECONDS: Final = 60
_SHOWN: Final = 5
_WEEK: Final = timedelta(days=7)
# From this share of failures on, the number is alarming.
_ALARMING_PERCENT: Final = 5


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page shows the usage of: a part of the traffic, and the query of its generations.

    ``rankings`` are the parts of it that are ranked: ``models``, ``providers`` and ``keys``.
    """

    scope: UsageScope
    query: Mapping[str, str]
    rankings: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Panel:
    """The component as the template shows it."""

    ranges: Sequence[tuple[str, str, bool]]
    generations: str
    cards: Sequence[Card]
    charts: Sequence[Chart]
    tops: Sequence[Top] = field(default_factory=list)


def show_usage(subject_of: Callable[[Any], Subject]) -> Callable[[HttpRequest, Any], Panel | None]:
    """Makes the panel ``usage`` of a page, whose objects are the subjects.

    Only operators who may view generations see it.
    """

    def build(request: HttpRequest, obj: Any) -> Panel | None:
        if not request.user.has_perm("inference.view_generation"):
            return None
        return build_panel(subject_of(obj), PERIODS.get(request.GET.get(_PARAMETER, ""), _PERIOD))

    return build


def build_panel(subject: Subject, period: Period) -> Panel:
    """Returns the component for a part of the traffic and a period."""
    now = clock.now()
    usage = _read(subject.scope, period, now)
    links = _Links(subject, period, now)
    return Panel(
        [
            (one.title, f"?{_PARAMETER}={name}#usage", one is period)
            for name, one in PERIODS.items()
        ],
        links.to_generations(),
        _make_cards(usage.total, links),
        _plot(usage, period),
        [_rank(name, getattr(usage, name), links) for name in subject.rankings],
    )


def _read(scope: UsageScope, period: Period, now: datetime) -> PeriodUsage:
    """Reads the usage; that of all organizations is remembered for a minute."""
    if scope.organization_id is not None:
        return read_usage(scope, period, now)
    text = repr((period.name, period.began_at(now), sorted(scope.columns.items())))
    name = f"console:usage:{hashlib.sha256(text.encode()).hexdigest()}"
    found: PeriodUsage | None = cache.get(name)
    if found is None:
        found = read_usage(scope, period, now)
        cache.set(name, found, _CACHED_SECONDS)
    return found


class _Links:
    """The links into the list of generations, narrowed to a part of the traffic and a time."""

    def __init__(self, subject: Subject, period: Period, now: datetime) -> None:
        begin = period.began_at(now).astimezone(UTC)
        self._query = {
            **subject.query,
            "created_at__gte": begin.strftime("%Y-%m-%d %H:%M:%S+00:00"),
        }
        if subject.scope.organization_id is None and period.length <= _WEEK:
            # No index has these columns. The filter states a range of ids.
            self._query["since"] = "week"

    def to_generations(self, **query: str) -> str:
        url = reverse("admin:inference_generation_changelist")
        return f"{url}?{urlencode({**self._query, **query})}"


def _make_cards(total: Sums, links: _Links) -> list[Card]:
    share = 100 * total.failed / total.requests if total.requests else 0
    return [
        Card("Requests", f"{total.requests:,}", links.to_generations(), "bolt"),
        Card(
            "Spend",
            short_dollars(total.cost_nano),
            links.to_generations(),
            "payments",
            f"{short_dollars(total.upstream_nano)} upstream cost",
            exact=f"{nano_dollars(total.cost_nano)}, "
            f"{nano_dollars(total.upstream_nano)} upstream cost",
        ),
        Card(
            "Errors",
            f"{share:.1f}%",
            links.to_generations(status__exact="failed"),
            "error",
            f"{total.failed:,} failed",
            is_alarming=share >= _ALARMING_PERCENT,
        ),
        Card("Latency", f"{total.mean_latency_ms:,} ms", "", "timer", "to the first event"),
    ]


def plot_traffic(axis: Axis, total: Sums, bars: Sequence[Sums]) -> list[Chart]:
    """Returns the charts of requests, spend and latency."""
    failed = [bar.failed for bar in bars]
    requests, spend = [bar.requests for bar in bars], [bar.cost_nano for bar in bars]
    latency, mean = [bar.mean_latency_ms for bar in bars], f"{total.mean_latency_ms:,} ms"
    return [
        axis.plot("Requests", f"{total.requests:,}", requests, "{:,}".format, bad=failed),
        axis.plot("Spend", short_dollars(total.cost_nano), spend, nano_dollars),
        axis.plot("Latency", f"{mean} to the first event", latency, "{:,} ms".format),
    ]


def _plot(usage: PeriodUsage, period: Period) -> list[Chart]:
    axis = Axis([slot.strftime(period.pattern) for slot in usage.slots])
    failed = [bar.failed for bar in usage.bars]
    requests, spend, latency = plot_traffic(axis, usage.total, usage.bars)
    errors = axis.plot("Errors", f"{usage.total.failed:,}", failed, "{:,}".format)
    return [requests, spend, errors, latency]


_TITLES: Final = {"models": "By model", "providers": "By provider", "keys": "By key"}


def _rank(name: str, parts: Mapping[str, Sums], links: _Links) -> Top:
    """Returns the parts with the highest spend; the others are counted in one row."""
    order = sorted(parts, key=lambda part: (-parts[part].cost_nano, -parts[part].requests, part))
    shown = order[:_SHOWN]
    describe = _DESCRIBE[name](shown, links)
    highest = max((_weigh(parts[part]) for part in shown), default=(0, 0))
    rows: list[RankRow] = []
    for part in shown:
        percent = _percent(_weigh(parts[part]), highest)
        rows.append(_make_rank(*describe(part), parts[part], percent))
    if rest := order[_SHOWN:]:
        sums = sum((parts[part] for part in rest), Sums())
        rows.append(_make_rank(f"{len(rest):,} more", links.to_generations(), sums, 0))
    return Top(_TITLES[name], rows, "No requests in this range.")


def _make_rank(name: str, url: str, sums: Sums, percent: int) -> RankRow:
    numbers = f"{sums.requests:,} · {short_dollars(sums.cost_nano)}"
    return RankRow(name, url, numbers, percent, nano_dollars(sums.cost_nano))


def _weigh(sums: Sums) -> tuple[int, int]:
    return sums.cost_nano, sums.requests


def _percent(weight: tuple[int, int], highest: tuple[int, int]) -> int:
    """Returns the length of a bar by spend, or by requests while nothing was spent."""
    place = 0 if highest[0] else 1
    return max(100 * weight[place] // max(highest[place], 1), 1)


_Describe = Callable[[str], tuple[str, str]]


def _describe_models(shown: Sequence[str], links: _Links) -> _Describe:
    return lambda name: (name, links.to_generations(model__exact=name))


def _describe_providers(shown: Sequence[str], links: _Links) -> _Describe:
    return lambda name: (name, links.to_generations(provider_name__exact=name))


def _describe_keys(shown: Sequence[str], links: _Links) -> _Describe:
    names = {str(key.pk): key.name for key in ApiKey.objects.filter(pk__in=shown)}
    return lambda name: (
        names.get(name, name),
        reverse("admin:accounts_apikey_change", args=[name]),
    )


_DESCRIBE: Final[Mapping[str, Callable[[Sequence[str], _Links], _Describe]]] = {
    "models": _describe_models,
    "providers": _describe_providers,
    "keys": _describe_keys,
}
