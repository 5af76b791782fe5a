"""Providers that fail, credentials that are refused, and guardrails that refuse much."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings

from catalog.models import CredentialRefusal
from config.bulk.tables import format_time
from config.clocks.clock import clock
from config.events.outbox import NewEvent
from config.sql import fetch_rows
from inference.ids import first_id

# The hours of a day in which a state that lasts is told once.
_HOURS: Final = 6
_SLOTS: Final = 12
_LEAST_FAILURES: Final = 10
_LEAST_REFUSALS: Final = 3
_LEAST_JUDGED: Final = 10
_RECENT: Final = timedelta(minutes=10)

# The health of the last minute, as the workers share it.
_FAILING: Final = """
SELECT p.slug, p.name, sum(h.failures)::bigint, sum(h.failures + h.successes)::bigint
FROM inference_endpointhealth h
JOIN catalog_modelendpoint e ON e.id = h.endpoint_id
JOIN catalog_provider p ON p.id = e.provider_id
WHERE h.bucket > floor(extract(epoch FROM now()) / 5) - %(slots)s
GROUP BY p.slug, p.name
HAVING sum(h.failures) >= %(least)s AND sum(h.failures) >= sum(h.successes)
"""
# The generations of one minute, found by the primary key.
_REFUSED: Final = """
SELECT g.organization_id, a ->> 'provider'
FROM inference_generation g CROSS JOIN jsonb_array_elements(g.attempts) AS a
WHERE g.id >= %(first)s AND g.created_at > now() - interval '1 minute'
    AND a ->> 'is_byok' = 'true' AND a ->> 'status' IN ('401', '402', '403')
GROUP BY 1, 2
HAVING count(*) >= %(least)s
ORDER BY 1, 2
"""

# The counts of an hour: a guardrail has twelve rows for each of its reasons.
_REFUSING: Final = """
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


def _part_of_day(now: datetime) -> str:
    """Names the six hours of a UTC day that a moment belongs to."""
    return f"{now:%Y-%m-%d}.{now.hour // _HOURS}"


def find_failing_providers() -> Iterator[NewEvent]:
    """Yields an event for each provider that failed half of the attempts of a minute."""
    rows = fetch_rows(_FAILING, {"slots": _SLOTS, "least": _LEAST_FAILURES})
    period = _part_of_day(clock.now())
    for slug, name, failures, attempts in rows:
        data = {
            "provider": slug,
            "name": name,
            "failures": failures,
            "attempts": attempts,
            "percent": failures * 100 // attempts,
        }
        yield NewEvent("provider.failing", None, data, f"{slug}|{period}")


def find_refused_credentials() -> Iterator[NewEvent]:
    """Yields an event for each credential that its provider refuses: the operator's, and BYOK."""
    now = clock.now()
    period = _part_of_day(now)
    recent = CredentialRefusal.objects.filter(seen_at__gte=now - _RECENT)
    for refusal in recent.select_related("provider"):
        data = {
            "provider": refusal.provider.name,
            "owner": "the operator",
            "since": format_time(refusal.since),
        }
        yield NewEvent("credential.failing", None, data, f"{refusal.provider.slug}|{period}")
    first = first_id(now - timedelta(minutes=1))
    found = fetch_rows(_REFUSED, {"first": first, "least": _LEAST_REFUSALS})
    for organization_id, provider in found:
        data = {
            "provider": provider,
            "owner": "the organization",
            "since": format_time(now - timedelta(minutes=1)),
        }
        once = f"{organization_id}|{provider}|{period}"
        yield NewEvent("credential.failing", organization_id, data, once)


def find_refusing_guardrails() -> Iterator[NewEvent]:
    """Yields an event for each guardrail that refused ``GUARDRAIL_ALERT_PERCENT`` of an hour.

    Fewer than ten refusals are never told, and none while the setting is 0.
    """
    if not settings.GUARDRAIL_ALERT_PERCENT:
        return
    now = clock.now()
    values: dict[str, Any] = {
        "since": now - timedelta(hours=1),
        "least": _LEAST_JUDGED,
        "percent": settings.GUARDRAIL_ALERT_PERCENT,
    }
    rows = fetch_rows(_REFUSING, values)
    period = _part_of_day(now)
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
