"""Recomputes the ledger from transfers and generations and compares it with the stored figures."""

from __future__ import annotations

from typing import Final

from django.db import connection

from billing import verification as audit
from inference.models import Generation
from tests.support.machine.waiting import wait_until

# Each statement finds what contradicts a promise, and nothing in a ledger in order.
_HOLDS: Final = """
SELECT g.id, g.status, g.hold_nano, t.status, t.amount_nano
FROM inference_generation g
FULL JOIN billing_transfer t ON t.reference = g.id AND t.kind = 'usage'
WHERE t.id IS NULL AND g.hold_nano > 0
   OR t.id IS NOT NULL AND (g.id IS NULL AND t.kind = 'usage' OR g.hold_nano <> t.amount_nano
                            OR (g.status = 'pending') <> (t.status = 'pending'))
"""
_CHARGES: Final = """
SELECT g.id, g.cost_nano, t.paid
FROM inference_generation g
CROSS JOIN LATERAL (
    SELECT coalesce(sum(posted_nano), 0) AS paid FROM billing_transfer
    WHERE reference = g.id AND (
        kind = 'usage'
        OR kind IN ('excess', 'write_off')
           AND NOT EXISTS (SELECT FROM billing_excess e WHERE e.reference = g.id)
    )
) t
WHERE g.cost_nano <> t.paid OR (g.status = 'pending' AND t.paid > 0)
"""
_METERS: Final = """
WITH used AS (
    SELECT subject_id, count(*) AS requests, sum(g.cost_nano) AS cost,
           sum(g.upstream_cost_nano) FILTER (WHERE g.is_byok) AS byok,
           sum(g.hold_nano) FILTER (WHERE g.status = 'pending') AS held_cost,
           sum(g.upstream_hold_nano) FILTER (WHERE g.status = 'pending') AS held_byok
    FROM inference_generation g,
         unnest(
             ARRAY[g.api_key_id, g.workspace_id, g.member_id] || g.limit_subjects
         ) AS subject_id
    GROUP BY 1
)
SELECT m.subject_id, m.cost, u.cost, m.byok, u.byok, m.held_cost, u.held_cost, m.held_byok,
       u.held_byok
FROM billing_meter m LEFT JOIN used u USING (subject_id)
WHERE (m.cost, m.byok, m.held_cost, m.held_byok)
      <> (coalesce(u.cost, 0), coalesce(u.byok, 0), coalesce(u.held_cost, 0),
          coalesce(u.held_byok, 0))
   OR least(m.cost, m.byok, m.cost_daily, m.byok_daily) < 0
"""
_EXCESSES: Final = """
SELECT e.reference, e.status, g.status
FROM billing_excess e LEFT JOIN inference_generation g ON g.id = e.reference
WHERE g.id IS NULL OR g.status = 'pending' OR g.organization_id <> e.organization_id
"""
_JOURNALS: Final = """
SELECT g.id, j.generation_id, g.status
FROM inference_generation g LEFT JOIN inference_journal j ON j.generation_id = g.id
WHERE (g.status = 'pending') <> (j.generation_id IS NOT NULL)
"""
_BEYOND_THE_AUDIT: Final = (_HOLDS, _CHARGES, _METERS, _EXCESSES, _JOURNALS)


def differences() -> list[object]:
    """Returns each contradiction to the rules of the ledger."""
    # Deposits of tests have no chain behind them.
    found: list[object] = [
        text
        for check in audit.CHECKS
        if check is not audit.VERIFY_DEPOSITS
        for text in audit.run_check(check)
    ]
    with connection.cursor() as cursor:
        for statement in _BEYOND_THE_AUDIT:
            cursor.execute(statement)
            found.extend(cursor.fetchall())
    return found


def assert_in_order() -> None:
    assert differences() == []


def assert_settled_in_order() -> None:
    """Waits until no generation is pending, and then asserts that the ledger is in order."""
    wait_until(lambda: not Generation.objects.filter(status="pending").exists())
    assert_in_order()
