"""The recent latency, throughput, uptime and popularity of public endpoints.

The figures come from the generations of all organizations. Anyone may request a list in their
order, so they are cached for ``KEPT_SECONDS``: any number of callers costs one query per minute in
each worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.core.cache import cache
from django.db import connection
from django.db.models import F, Sum

from config.clocks.clock import clock
from inference.models import Generation

KEPT_SECONDS: Final = 60
_PERCENTILES: Final = ("p50", "p75", "p90", "p99")

# Only the last attempt's own time counts, because earlier attempts went to other endpoints. Only
# streams have a time to the first token. A caller's mistake, a rate limit and a refused BYOK
# credential do not count as failures of the endpoint.
_FIGURES: Final = """
WITH recent AS MATERIALIZED (
    SELECT model_endpoint_id, created_at, status, streamed, completion_tokens, attempts,
        (attempts -> -1 ->> 'latency_ms')::bigint AS latency_ms,
        duration_ms - latency_ms + (attempts -> -1 ->> 'latency_ms')::bigint AS duration_ms
    FROM inference_generation
    WHERE id >= %(oldest_id)s AND created_at >= %(day)s
), speed AS (
    SELECT model_endpoint_id AS endpoint_id,
        percentile_cont(%(percentiles)s) WITHIN GROUP (ORDER BY latency_ms)
            FILTER (WHERE streamed) AS latency,
        percentile_cont(%(percentiles)s)
            WITHIN GROUP (ORDER BY completion_tokens * 1000.0 / nullif(duration_ms, 0))
            FILTER (WHERE completion_tokens > 0) AS throughput
    FROM recent
    WHERE created_at >= %(half_hour)s AND status = 'completed' AND model_endpoint_id IS NOT NULL
    GROUP BY 1
), minutes AS (
    SELECT (attempt ->> 'endpoint_id')::uuid AS endpoint_id,
        date_trunc('minute', created_at) AS minute,
        count(*) FILTER (
            WHERE attempt ->> 'error_type' IS NULL
            AND (status <> 'failed' OR number < jsonb_array_length(attempts))
        ) >= 0.8 * count(*) AS is_up
    FROM recent, jsonb_array_elements(attempts) WITH ORDINALITY AS tried (attempt, number)
    WHERE status <> 'pending'
    AND coalesce(attempt ->> 'error_type', '') NOT IN ('invalid_request', 'rate_limit_exceeded')
    AND NOT ((attempt ->> 'is_byok')::bool AND (attempt ->> 'status')::int IN (401, 402, 403))
    GROUP BY 1, 2
    HAVING count(*) >= 10
), uptime AS (
    SELECT endpoint_id,
        100 * avg(is_up::int) FILTER (WHERE minute >= %(five_minutes)s) AS uptime_5m,
        100 * avg(is_up::int) FILTER (WHERE minute >= %(half_hour)s) AS uptime_30m,
        100 * avg(is_up::int) AS uptime_1d
    FROM minutes
    GROUP BY 1
)
SELECT endpoint_id, latency, throughput, uptime_5m, uptime_30m, uptime_1d
FROM speed FULL JOIN uptime USING (endpoint_id)
"""


@dataclass(frozen=True, slots=True)
class Figures:
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


UNKNOWN: Final = Figures()


def figures() -> dict[UUID, Figures]:
    """Returns the figures of every endpoint that had traffic in the last day, by its key."""
    return cache.get_or_set("traffic.figures", _figures, KEPT_SECONDS) or {}


def tokens_last_week() -> dict[UUID, int]:
    """Returns the number of tokens that public endpoints processed in seven days, by model."""
    return cache.get_or_set("traffic.tokens", _tokens, KEPT_SECONDS) or {}


def _figures() -> dict[UUID, Figures]:
    now = clock.now()
    day = now - timedelta(days=1)
    values: dict[str, Any] = {
        "oldest_id": _first_id(day),
        "day": day,
        "half_hour": now - timedelta(minutes=30),
        "five_minutes": now - timedelta(minutes=5),
        "percentiles": [int(name[1:]) / 100 for name in _PERCENTILES],
    }
    with connection.cursor() as cursor:
        cursor.execute(_FIGURES, values)
        return {
            endpoint_id: Figures(
                _name_percentiles(latency), _name_percentiles(throughput), *map(_round, uptimes)
            )
            for endpoint_id, latency, throughput, *uptimes in cursor.fetchall()
        }


def _tokens() -> dict[UUID, int]:
    week = clock.now() - timedelta(days=7)
    sums = (
        Generation.objects.filter(pk__gte=_first_id(week), created_at__gte=week)
        .order_by()
        .values_list("model_endpoint__model_id")
        .annotate(tokens=Sum(F("prompt_tokens") + F("completion_tokens")))
    )
    return {model_id: tokens for model_id, tokens in sums if model_id and tokens}


def _first_id(since: datetime) -> str:
    """Returns a lower bound of the ids of generations since a moment.

    An id begins with its second, so the primary key serves as an index by time. One minute is
    subtracted for clocks that differ.
    """
    return f"gen-{int(since.timestamp()) - 60}"


def _name_percentiles(values: list[float] | None) -> dict[str, float] | None:
    """Returns percentiles by name; without rows PostgreSQL returns null or a list of nulls."""
    if values is None or None in values:
        return None
    return {name: round(float(value), 3) for name, value in zip(_PERCENTILES, values, strict=True)}


def _round(value: object) -> float | None:
    return None if value is None else round(float(str(value)), 3)
