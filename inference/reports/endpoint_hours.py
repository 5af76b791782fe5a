"""The traffic of public endpoints by hour, so that the lists of models read few generations.

The duty that sums hours stores the latest two days, which are all that anybody reads. An hour
without rows was not summed, or had no traffic; its generations are read either way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Final

from django.db import connection

from inference.models import EndpointHour
from inference.reports.rollups import join_spans, span_values

_HOUR: Final = timedelta(hours=1)
_KEPT: Final = timedelta(days=2)

# The public endpoints whose credential names the server. That of a tenant may name any server: what
# is asked with it counts for no figure of the endpoint.
ELSEWHERE: Final = """
    SELECT e.id FROM catalog_modelendpoint e JOIN catalog_provider p ON p.id = e.provider_id
    WHERE p.base_url IS NULL
"""
# The types of errors that say nothing of an endpoint: its callers' mistakes, and rate limits.
NEUTRAL_ERRORS: Final = """(
    'invalid_request', 'payload_too_large', 'context_length_exceeded', 'content_policy_violation',
    'rate_limit_exceeded'
)"""
# The minutes with at least ten attempts of each endpoint, from rows named ``recent``. A minute is
# up with 80 % successes. A caller's mistake, a rate limit and a refused BYOK credential do not
# count as failures of the endpoint.
BUSY_MINUTES: Final = """
    SELECT (attempt ->> 'endpoint_id')::uuid AS endpoint_id,
        date_trunc('minute', created_at) AS minute,
        count(*) FILTER (
            WHERE attempt ->> 'error_type' IS NULL
            AND (status <> 'failed' OR number < jsonb_array_length(attempts))
        ) >= 0.8 * count(*) AS is_up
    FROM recent, jsonb_array_elements(attempts) WITH ORDINALITY AS tried (attempt, number)
    WHERE status <> 'pending'
    AND coalesce(attempt ->> 'error_type', '') NOT IN {neutral}
    AND NOT ((attempt ->> 'is_byok')::bool AND (attempt ->> 'status')::int IN (401, 402, 403))
    AND ((attempt ->> 'is_byok')::bool
        AND (attempt ->> 'endpoint_id')::uuid IN ({elsewhere})) IS NOT TRUE
    GROUP BY 1, 2
    HAVING count(*) >= 10
""".replace("{elsewhere}", ELSEWHERE).replace("{neutral}", NEUTRAL_ERRORS)
_SUM: Final = """
WITH recent AS MATERIALIZED (
    SELECT model_endpoint_id, is_byok, created_at, status, attempts,
        coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0) AS tokens
    FROM inference_generation
    WHERE id >= %(first_id)s AND id < %(last_id)s
        AND created_at >= %(begin)s AND created_at < %(end)s
), minutes AS ({minutes}), found AS (
    SELECT date_trunc('hour', created_at, 'UTC') AS hour, model_endpoint_id AS endpoint_id,
        sum(tokens) AS tokens, 0 AS minutes, 0 AS minutes_up
    FROM recent
    WHERE model_endpoint_id IS NOT NULL
        AND NOT (is_byok AND model_endpoint_id IN ({elsewhere}))
    GROUP BY 1, 2
    UNION ALL
    SELECT date_trunc('hour', minute, 'UTC'), endpoint_id,
        0, count(*), count(*) FILTER (WHERE is_up)
    FROM minutes WHERE endpoint_id IN (SELECT id FROM catalog_modelendpoint) GROUP BY 1, 2
)
INSERT INTO inference_endpointhour (hour, endpoint_id, tokens, minutes, minutes_up)
SELECT hour, endpoint_id, greatest(least(sum(tokens), 9223372036854775807), 0), sum(minutes),
       sum(minutes_up)
FROM found GROUP BY 1, 2
ON CONFLICT DO NOTHING
""".replace("{minutes}", BUSY_MINUTES).replace("{elsewhere}", ELSEWHERE)


def sum_endpoints(end: datetime) -> None:
    """Stores the sums of the two days before the hour ``end``, and deletes older ones."""
    begin = end - _KEPT
    EndpointHour.objects.filter(hour__lt=begin).delete()
    with connection.cursor() as cursor:
        for since, until in missing_spans(begin, end, summed_hours(begin)):
            cursor.execute(_SUM, span_values(since, until))


def forget_endpoints(begin: datetime) -> None:
    """Deletes the sums since ``begin``; the duty stores them again."""
    EndpointHour.objects.filter(hour__gte=begin).delete()


def summed_hours(begin: datetime) -> set[datetime]:
    """Returns the hours since ``begin`` that have sums."""
    return set(
        EndpointHour.objects.filter(hour__gte=begin).values_list("hour", flat=True).distinct()
    )


def missing_spans(
    begin: datetime, end: datetime, summed: Collection[datetime]
) -> Iterator[tuple[datetime, datetime]]:
    """Yields the spans between the hours ``begin`` and ``end`` that have no sums."""
    hours = (begin + number * _HOUR for number in range((end - begin) // _HOUR))
    return join_spans({hour for hour in hours if hour not in summed}, _HOUR)
