"""Organizations whose credits end soon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from django.conf import settings

from config.bulk.tables import format_usd
from config.clocks.clock import clock
from config.events.outbox import NewEvent
from config.sql import fetch_rows

_DAYS: Final = 7
_LEAST_DAYS: Final = 3
# Balances that one statement returns. All are read, because those told before are found again.
_PAGE: Final = 1_000

# An organization without spending in a week is left out, and what is held is not available. Today
# counts by the meters of workspaces.
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
    SELECT o.id, o.name, a.posted_credits - a.posted_debits - a.pending_debits AS nano,
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
    """Yields ID, name, available credits and daily spending in nano-USD, by pages."""
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
