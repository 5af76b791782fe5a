"""Providers that fail, and credentials that are refused."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from django.db import connection

from catalog.models import CredentialRefusal
from config.bulk.tables import format_time
from config.clocks.clock import clock
from config.events.outbox import NewEvent
from inference.ids import first_id
from inference.notices.periods import part_of_day

_SLOTS: Final = 12
_LEAST_FAILURES: Final = 10
_LEAST_REFUSALS: Final = 3
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


def find_failing_providers() -> Iterator[NewEvent]:
    """Yields an event for each provider that failed half of the attempts of a minute."""
    with connection.cursor() as cursor:
        cursor.execute(_FAILING, {"slots": _SLOTS, "least": _LEAST_FAILURES})
        rows = cursor.fetchall()
    period = part_of_day(clock.now())
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
    period = part_of_day(now)
    recent = CredentialRefusal.objects.filter(seen_at__gte=now - _RECENT)
    for refusal in recent.select_related("provider"):
        data = {
            "provider": refusal.provider.name,
            "owner": "the operator",
            "since": format_time(refusal.since),
        }
        yield NewEvent("credential.failing", None, data, f"{refusal.provider.slug}|{period}")
    with connection.cursor() as cursor:
        first = first_id(now - timedelta(minutes=1))
        cursor.execute(_REFUSED, {"first": first, "least": _LEAST_REFUSALS})
        rows = cursor.fetchall()
    for organization_id, provider in rows:
        data = {
            "provider": provider,
            "owner": "the organization",
            "since": format_time(now - timedelta(minutes=1)),
        }
        once = f"{organization_id}|{provider}|{period}"
        yield NewEvent("credential.failing", organization_id, data, once)
