"""The attempts of recent requests, as the pages of health and errors count them.

An attempt failed if its provider or endpoint failed. Errors that a caller caused do not count: a
refused request, or a refused credential of the organization itself. A rate limit is shown and does
not count either, because another candidate or a later attempt serves the request.
"""

from __future__ import annotations

from typing import Final

from inference.reports.endpoint_hours import NEUTRAL_ERRORS

MOST_ROWS: Final = 20_000
"""A page reads this many generations at most, the latest ones."""

# The parts in braces are SQL of the callers. Each row is an attempt of a generation in ``recent``.
# The last attempt of a failed generation failed, although its answer may have begun; its error is
# that of the generation, by which the list of generations is filtered.
TRIED: Final = """
    SELECT r.created_at, a ->> 'provider' AS provider_name,
        (a ->> 'endpoint_id')::uuid AS endpoint_id,
        CASE WHEN r.status = 'failed' AND number = jsonb_array_length(r.attempts)
            THEN coalesce(r.error_type, a ->> 'error_type', 'unknown')
            ELSE a ->> 'error_type'
        END AS error_type,
        (a ->> 'is_byok')::bool AS is_byok,
        (a ->> 'is_byok')::bool AND (a ->> 'status')::int IN (401, 402, 403) AS is_refused,
        r.status = 'failed' AND number = jsonb_array_length(r.attempts) AS is_final,
        a ->> 'kind' = 'unknown_model' AS is_unknown, a ->> 'lacks' AS lacks
    FROM recent AS r, jsonb_array_elements(r.attempts) WITH ORDINALITY AS tried (a, number)
"""
# Whether a row of ``TRIED`` is a failure of its provider and endpoint.
IS_FAILURE: Final = """(
    error_type IS NOT NULL AND NOT is_refused
    AND error_type NOT IN {neutral}
)""".replace("{neutral}", NEUTRAL_ERRORS)
# The errors of generations in ``recent``: each failed attempt, and each generation that failed
# before its first one.
FAILURES: Final = """
    SELECT created_at, provider_name, left(error_type, 64) AS error_type, 1 AS attempts,
        is_final::int AS requests
    FROM ({tried}) AS tried WHERE error_type IS NOT NULL
    UNION ALL
    SELECT created_at, provider_name, coalesce(error_type, 'unknown'), 0, 1
    FROM recent WHERE status = 'failed' AND jsonb_array_length(attempts) = 0
""".replace("{tried}", TRIED)
