"""The duty that stores the events of states."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import UUID

from django.conf import settings

from catalog.models import CredentialRefusal
from config.bulk.tables import format_time, format_usd
from config.clocks.clock import clock
from config.events.outbox import NewEvent, record_new
from config.sql import fetch_rows
from inference.ids import first_id
from inference.notices.budgets import find_used_budgets
from inference.watch.anomalies import find_anomalies

_BATCH: Final = 1_000


def find_notices() -> int:
    """Stores an event for each state that was not told in its period; returns their number."""
    return sum(
        _record_all(find())
        for find in (
            find_used_budgets,
            find_low_balances,
            find_failing_providers,
            find_refused_credentials,
            find_refusing_guardrails,
            find_unusual_spending,
        )
    )


def _record_all(found: Iterator[NewEvent]) -> int:
    """Stores the events that are new, a batch at a time; returns their number."""
    stored = 0
    while batch := list(islice(found, _BATCH)):
        stored += record_new(batch)
    return stored


def find_unusual_spending() -> Iterator[NewEvent]:
    """Yields an event for each day of an organization with far more spending than usual."""
    for anomaly in find_anomalies():
        data = {
            "organization": anomaly.name,
            "day": anomaly.day.isoformat(),
            "until": anomaly.until_text,
            "spent_usd": format_usd(anomaly.spent_nano),
            "usual_usd": format_usd(anomaly.usual_nano),
        }
        once = f"{anomaly.organization_id}|{anomaly.day}"
        yield NewEvent("spend.anomaly", anomaly.organization_id, data, once)


_DAYS: Final = 7
_LEAST_DAYS: Final = 3
# Balances that one statement returns. All are read, because those told before are found again.
_PAGE: Final = 1_000

# An organization without spending in a week is left out. Today counts by the meters of workspaces.
_READ: Final = """
WITH parts AS (
    SELECT organization_id, cost_nano FROM inference_dailyusage
    WHERE NOT by_end_user AND day >= %(today)s - %(days)s AND day < %(today)s
    UNION ALL
    SELECT m.organization_id, m.cost_daily
    FROM billing_meter m JOIN accounts_workspace w ON w.id = m.subject_id
    WHERE m.day = %(today)s
),
spent AS (
    SELECT organization_id, sum(cost_nano) AS nano FROM parts GROUP BY 1 HAVING sum(cost_nano) > 0
),
left_over AS (
    SELECT o.id, o.name, a.posted_credits - a.posted_debits AS nano,
           s.nano / least(
               greatest(%(today)s - (o.created_at AT TIME ZONE 'UTC')::date, 1), %(days)s
           ) AS daily
    FROM spent s
    JOIN accounts_organization o ON o.id = s.organization_id
    JOIN billing_account a ON a.organization_id = o.id AND a.kind = 'credits'
)
SELECT id, name, nano, ceil(daily)::bigint FROM left_over
WHERE (nano < %(threshold)s OR nano < daily * %(least)s) AND id > %(last)s
ORDER BY id LIMIT %(page)s
"""


def _read_low(values: dict[str, Any]) -> Iterator[tuple[UUID, str, int, int]]:
    """Yields ID, name, balance and daily spending in nano-USD of organizations, by pages."""
    while True:
        rows: Any = fetch_rows(_READ, values)
        yield from rows
        if len(rows) < _PAGE:
            return
        values = {**values, "last": rows[-1][0]}


def find_low_balances() -> Iterator[NewEvent]:
    """Yields an event for each balance below ``BALANCE_ALERT_USD``, or of less than three days."""
    today = clock.now().date()
    values: dict[str, Any] = {
        "today": today,
        "days": _DAYS,
        "threshold": settings.BALANCE_ALERT_NANO,
        "least": _LEAST_DAYS,
        "page": _PAGE,
        "last": UUID(int=0),
    }
    year, week, _ = today.isocalendar()
    for organization_id, name, nano, daily in _read_low(values):
        data = {
            "organization": name,
            "available_usd": format_usd(nano),
            "threshold_usd": format_usd(settings.BALANCE_ALERT_NANO),
            "daily_usd": format_usd(daily),
            "days_left": max(nano, 0) // daily,
        }
        yield NewEvent("balance.low", organization_id, data, f"{organization_id}|{year}-{week}")


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
