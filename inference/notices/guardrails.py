"""Guardrails that refuse much of what they judge."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from django.conf import settings
from django.db import connection

from config.clocks.clock import clock
from config.events.outbox import NewEvent
from inference.notices.periods import part_of_day

_HOUR: Final = timedelta(hours=1)
_LEAST_REFUSALS: Final = 10

# The counts of an hour: a guardrail has twelve rows for each of its reasons.
_READ: Final = """
WITH judged AS (
    SELECT guardrail_id, sum(requests) AS requests,
           sum(requests) FILTER (WHERE reason <> '') AS refused
    FROM inference_guardrailcount
    WHERE slot > %(since)s
    GROUP BY guardrail_id
    HAVING sum(requests) FILTER (WHERE reason <> '') >= %(least)s
        AND sum(requests) FILTER (WHERE reason <> '') * 100 >= sum(requests) * %(percent)s
)
SELECT g.id, g.name, o.id, o.name, j.refused::bigint, j.requests::bigint, (
    SELECT c.reason FROM inference_guardrailcount c
    WHERE c.guardrail_id = j.guardrail_id AND c.slot > %(since)s AND c.reason <> ''
    GROUP BY c.reason ORDER BY sum(c.requests) DESC, c.reason LIMIT 1
)
FROM judged j
JOIN accounts_guardrail g ON g.id = j.guardrail_id
JOIN accounts_organization o ON o.id = g.organization_id
ORDER BY g.id
"""


def find_refusing_guardrails() -> Iterator[NewEvent]:
    """Yields an event for each guardrail that refused ``GUARDRAIL_ALERT_PERCENT`` of an hour.

    Fewer than ten refusals are never told, and none while the setting is 0.
    """
    if not settings.GUARDRAIL_ALERT_PERCENT:
        return
    now = clock.now()
    values: dict[str, Any] = {
        "since": now - _HOUR,
        "least": _LEAST_REFUSALS,
        "percent": settings.GUARDRAIL_ALERT_PERCENT,
    }
    with connection.cursor() as cursor:
        cursor.execute(_READ, values)
        rows = cursor.fetchall()
    period = part_of_day(now)
    for guardrail_id, name, organization_id, organization, refused, requests, reason in rows:
        data = {
            "organization": organization,
            "id": str(guardrail_id),
            "guardrail": name,
            "reason": reason,
            "refused": refused,
            "requests": requests,
            "percent": refused * 100 // requests,
        }
        once = f"{guardrail_id}|{period}"
        yield NewEvent("guardrail.refusing", organization_id, data, once)
