"""The recent latency, throughput, uptime and popularity of public endpoints.

The figures come from the traffic of all organizations: from the sums of past hours and days, and
from the generations of the last hours. Anyone may request a list in their order, so they are cached
for ``KEPT_SECONDS``: any number of callers costs one query per minute in each worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.core.cache import cache
from django.db import connection
from django.db.models import QuerySet, Sum
from django.db.models.functions import Coalesce

from catalog.models import ModelEndpoint
from config.clocks.clock import clock
from config.database.replica.reading import read
from inference.ids import first_id, last_id
from inference.models import DailyUsage, EndpointHour, Generation, UsageDay
from inference.reports.endpoint_hours import (
    BUSY_MINUTES,
    ELSEWHERE,
    missing_spans,
    summed_hours,
)
from inference.reports.hours import HOUR, hour_of
from inference.reports.rollups import join_days

KEPT_SECONDS: Final = 60
_WEEK_DAYS: Final = 7
_DAY: Final = timedelta(days=1)
PERCENTILES: Final = ("p50", "p75", "p90", "p99")

# Only the last attempt's own time counts, because earlier attempts went to other endpoints. Only
# streams have a time to the first token.
_FIGURES: Final = """
WITH recent AS MATERIALIZED ({recent}), speed AS (
    SELECT model_endpoint_id AS endpoint_id,
        percentile_cont(%(percentiles)s) WITHIN GROUP (ORDER BY latency_ms)
            FILTER (WHERE streamed) AS latency,
        percentile_cont(%(percentiles)s)
            WITHIN GROUP (ORDER BY completion_tokens * 1000.0 / nullif(duration_ms, 0))
            FILTER (WHERE completion_tokens > 0) AS throughput
    FROM recent
    WHERE created_at >= %(half_hour)s AND status = 'completed' AND model_endpoint_id IS NOT NULL
        AND NOT (is_byok AND model_endpoint_id IN ({elsewhere}))
    GROUP BY 1
), minutes AS ({minutes}), counted AS (
    SELECT endpoint_id,
        100 * avg(is_up::int) FILTER (WHERE minute >= %(five_minutes)s) AS uptime_5m,
        100 * avg(is_up::int) FILTER (WHERE minute >= %(half_hour)s) AS uptime_30m,
        count(*) AS minutes, count(*) FILTER (WHERE is_up) AS minutes_up
    FROM minutes
    GROUP BY 1
    UNION ALL
    SELECT endpoint_id, NULL, NULL, minutes, minutes_up
    FROM inference_endpointhour WHERE hour = ANY(%(summed)s::timestamptz[])
), uptime AS (
    SELECT endpoint_id, max(uptime_5m) AS uptime_5m, max(uptime_30m) AS uptime_30m,
        100.0 * sum(minutes_up) / nullif(sum(minutes), 0) AS uptime_1d
    FROM counted
    GROUP BY 1
)
SELECT endpoint_id, latency, throughput, uptime_5m, uptime_30m, uptime_1d
FROM speed FULL JOIN uptime USING (endpoint_id)
""".replace("{minutes}", BUSY_MINUTES).replace("{elsewhere}", ELSEWHERE)
# One for each span of time, so that PostgreSQL reads the partitions and the rows of that span.
_RECENT: Final = """
    SELECT model_endpoint_id, is_byok, created_at, status, streamed, completion_tokens, attempts,
        (attempts -> -1 ->> 'latency_ms')::bigint AS latency_ms,
        duration_ms - latency_ms + (attempts -> -1 ->> 'latency_ms')::bigint AS duration_ms
    FROM inference_generation
    WHERE id >= %(first_id{n})s AND id < %(last_id{n})s
        AND created_at >= %(begin{n})s AND created_at < %(end{n})s
"""


@dataclass(frozen=True, slots=True)
class TrafficFigures:
    """One endpoint's recent figures; ``None`` where there was too little traffic.

    ``latency`` (milliseconds to the first token, of streams) and ``throughput`` (completion tokens
    per second of the whole call) are percentiles of the last 30 minutes. Uptimes are the share, in
    percent, of minutes with at least 80 % successes among the minutes with ten attempts or more.
    """

    latency: Mapping[str, float] | None = None
    throughput: Mapping[str, float] | None = None
    uptime_5m: float | None = None
    uptime_30m: float | None = None
    uptime_1d: float | None = None


UNKNOWN: Final = TrafficFigures()


def figures() -> dict[UUID, TrafficFigures]:
    """Returns the figures of every endpoint that had traffic in the last day, by its key."""
    return cache.get_or_set("traffic.figures", _figures, KEPT_SECONDS) or {}


def tokens_last_week() -> dict[UUID, int]:
    """Returns the tokens that public endpoints processed today and in the six days before."""
    return cache.get_or_set("traffic.tokens", _tokens, KEPT_SECONDS) or {}


@read
def _figures() -> dict[UUID, TrafficFigures]:
    now = clock.now()
    begin = hour_of(now - _DAY)
    summed = summed_hours(begin)
    values: dict[str, Any] = {
        "summed": sorted(summed),
        "half_hour": now - timedelta(minutes=30),
        "five_minutes": now - timedelta(minutes=5),
        "percentiles": [int(name[1:]) / 100 for name in PERCENTILES],
    }
    parts = []
    for n, (since, until) in enumerate(missing_spans(begin, hour_of(now) + HOUR, summed)):
        parts.append(_RECENT.replace("{n}", str(n)))
        values |= {
            f"first_id{n}": first_id(since), f"last_id{n}": last_id(until),
            f"begin{n}": since, f"end{n}": until,
        }  # fmt: skip
    query = _FIGURES.replace("{recent}", "UNION ALL".join(parts))
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return {
            endpoint_id: TrafficFigures(
                _name_percentiles(latency), _name_percentiles(throughput), *map(_round, uptimes)
            )
            for endpoint_id, latency, throughput, *uptimes in cursor.fetchall()
        }


@read
def _tokens() -> dict[UUID, int]:
    """Adds the sums of days, the sums of hours of the other days, and generations since then."""
    now = clock.now()
    days = {now.date() - number * _DAY for number in range(_WEEK_DAYS)}
    summed = set(UsageDay.objects.filter(day__in=days).values_list("day", flat=True))
    # The sum of a day has no column for the payer. One with an own credential is left out whole.
    own = {"endpoint_id__in": _elsewhere(), "byok_nano__gt": 0}
    stored = DailyUsage.objects.filter(day__in=summed, by_end_user=False).exclude(**own)
    tokens = Counter(_by_endpoint(stored, "endpoint_id"))
    for begin, end in join_days(days - summed):
        tokens.update(_tokens_by_hour(begin, min(end, hour_of(now) + HOUR)))
    models: Counter[UUID] = Counter()
    for endpoint_id, model_id in ModelEndpoint.objects.filter(pk__in=tokens).values_list(
        "pk", "model_id"
    ):
        models[model_id] += tokens[endpoint_id]
    return {model_id: count for model_id, count in models.items() if count}


def _tokens_by_hour(begin: datetime, end: datetime) -> Counter[UUID]:
    """Returns the tokens of endpoints in a span of hours."""
    summed = {hour for hour in summed_hours(begin) if hour < end}
    hours = EndpointHour.objects.filter(hour__in=summed)
    sums = hours.order_by().values_list("endpoint_id").annotate(tokens=Sum("tokens"))
    tokens = Counter({endpoint_id: int(count) for endpoint_id, count in sums})
    own = {"model_endpoint_id__in": _elsewhere(), "is_byok": True}
    for since, until in missing_spans(begin, end, summed):
        rows = Generation.objects.created(since, until).exclude(**own)
        tokens.update(_by_endpoint(rows, "model_endpoint_id"))
    return tokens


def _elsewhere() -> QuerySet[Any]:
    """Returns the ids of the endpoints in ``ELSEWHERE``."""
    return ModelEndpoint.objects.filter(provider__base_url=None).order_by().values("pk")


def _by_endpoint(rows: QuerySet[Any], endpoint: str) -> dict[UUID, int]:
    """Returns the tokens of rows by the endpoint that a column names."""
    sums = (
        rows.order_by()
        .values_list(endpoint)
        .annotate(tokens=Coalesce(Sum("prompt_tokens"), 0) + Coalesce(Sum("completion_tokens"), 0))
    )
    return {key: int(tokens) for key, tokens in sums if key is not None}


def _name_percentiles(values: list[float] | None) -> dict[str, float] | None:
    """Returns percentiles by name; without rows PostgreSQL returns null or a list of nulls."""
    if values is None or None in values:
        return None
    return {name: round(float(value), 3) for name, value in zip(PERCENTILES, values, strict=True)}


def _round(value: object) -> float | None:
    return None if value is None else round(float(str(value)), 3)
