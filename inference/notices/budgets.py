"""Budgets and limits of keys that are nearly used up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from accounts.models import BudgetInterval, Guardrail
from accounts.models.workspaces import default_guardrail_id
from config.bulk.tables import format_time, format_usd
from config.clocks.clock import clock
from config.events.outbox import NewEvent
from config.sql import fetch_rows

STEPS: Final = (50, 80, 95, 100)
_NEAR: Final = 80
_SPENT: Final = 100
# Budgets that one statement returns. All are read, because those told before are found again.
_PAGE: Final = 5_000

# Only a subject with usage today can have come nearer to its limit. Its sums of the day, the week
# and the month are then the present ones.
# At prices that a tenant states itself a meter may be full, and the sum exceed its column.
_READ: Final = """
WITH limits AS (
    SELECT 'key' AS scope, k.id AS subject_id, k.id, k.organization_id, k.name, k.limit_nano,
           k.limit_reset AS reset, k.include_byok_in_limit AS byok, k.digest, k.label
    FROM accounts_apikey k
    WHERE k.limit_nano > 0 AND k.deleted_at IS NULL
    UNION ALL
    SELECT 'workspace', w.id, b.id, w.organization_id, w.name, b.limit_nano, b.interval,
           w.include_byok_in_budgets, '', ''
    FROM accounts_workspacebudget b JOIN accounts_workspace w ON w.id = b.workspace_id
    UNION ALL
    SELECT 'guardrail', k.id, g.id, g.organization_id, g.name || ', key ' || k.name, g.limit_nano,
           g.reset_interval, g.include_byok_in_budgets, '', ''
    FROM accounts_guardrail g
    JOIN accounts_keyassignment a ON a.guardrail_id = g.id
    JOIN accounts_apikey k ON k.id = a.api_key_id
    WHERE g.limit_nano > 0
    UNION ALL
    SELECT 'guardrail', m.id, g.id, g.organization_id, g.name || ', member ' || m.email,
           g.limit_nano, g.reset_interval, g.include_byok_in_budgets, '', ''
    FROM accounts_guardrail g
    JOIN accounts_memberassignment a ON a.guardrail_id = g.id
    JOIN accounts_member m ON m.id = a.member_id
    WHERE g.limit_nano > 0
    UNION ALL
    SELECT 'guardrail', k.id, g.id, g.organization_id, g.name || ', key ' || k.name, g.limit_nano,
           g.reset_interval, g.include_byok_in_budgets, '', ''
    FROM accounts_guardrail g JOIN accounts_apikey k ON k.workspace_id = g.workspace_id
    WHERE g.id = ANY(%(defaults)s)
    UNION ALL
    SELECT DISTINCT 'guardrail', m.id, g.id, g.organization_id, g.name || ', member ' || m.email,
           g.limit_nano, g.reset_interval, g.include_byok_in_budgets, '', ''
    FROM accounts_guardrail g
    JOIN accounts_apikey k ON k.workspace_id = g.workspace_id
    JOIN accounts_member m ON m.id = k.creator_id
    WHERE g.id = ANY(%(defaults)s)
),
spent AS (
    SELECT l.*, CASE l.reset
        WHEN 'daily' THEN m.cost_daily + CASE WHEN l.byok THEN m.byok_daily ELSE 0::numeric END
        WHEN 'weekly' THEN m.cost_weekly + CASE WHEN l.byok THEN m.byok_weekly ELSE 0::numeric END
        WHEN 'monthly'
            THEN m.cost_monthly + CASE WHEN l.byok THEN m.byok_monthly ELSE 0::numeric END
        ELSE m.cost + CASE WHEN l.byok THEN m.byok ELSE 0::numeric END END AS spent_nano
    FROM limits l
    JOIN billing_meter m ON m.subject_id = l.subject_id
    WHERE m.day = (now() AT TIME ZONE 'UTC')::date
)
SELECT scope, subject_id, id, organization_id, name, limit_nano, reset, digest, label,
       least(spent_nano, 9223372036854775807)::bigint
FROM spent
WHERE spent_nano >= limit_nano / 2
    AND (id, subject_id) > (%(last_id)s::uuid, %(last_subject)s::uuid)
ORDER BY id, subject_id
LIMIT %(page)s
"""


@dataclass(frozen=True, slots=True)
class _Used:
    """A limit, and the spending of its present period in nano-USD."""

    scope: str
    subject_id: UUID
    id: UUID
    organization_id: UUID
    name: str
    limit_nano: int
    reset: str | None
    digest: str
    label: str
    spent_nano: int

    @property
    def step(self) -> int:
        """The highest step that is reached, or 0."""
        percent = self.spent_nano * 100 // self.limit_nano
        return max((step for step in STEPS if percent >= step), default=0)


def find_used_budgets() -> Iterator[NewEvent]:
    """Yields an event for each budget at its highest step, and for each key near its limit."""
    defaults = [
        row.pk
        for row in Guardrail.objects.filter(limit_nano__gt=0).exclude(workspace=None)
        if row.workspace_id is not None and row.pk == default_guardrail_id(row.workspace_id)
    ]
    now = clock.now()
    for used in _read_used(defaults):
        if used.scope == "key":
            if used.step >= _NEAR:
                yield _tell_of_key(used, now)
        elif used.step:
            yield _tell_of_budget(used, now)


def _read_used(defaults: list[UUID]) -> Iterator[_Used]:
    """Yields the limits of which half is used, a page at a time."""
    last_id = last_subject = UUID(int=0)
    while True:
        values: dict[str, Any] = {
            "defaults": defaults,
            "page": _PAGE,
            "last_id": last_id,
            "last_subject": last_subject,
        }
        rows = [_Used(*row) for row in fetch_rows(_READ, values)]
        yield from rows
        if len(rows) < _PAGE:
            return
        last_id, last_subject = rows[-1].id, rows[-1].subject_id


def _tell_of_key(used: _Used, now: datetime) -> NewEvent:
    is_spent = used.step >= _SPENT
    kind = "key.limit_reached" if is_spent else "key.limit_near"
    data = {
        "hash": used.digest,
        "name": used.name,
        "label": used.label,
        **_amounts(used, now),
    }
    # A limit that was raised is another one.
    once = f"{used.id}|{used.limit_nano}|{_period(used, now)}"
    return NewEvent(kind, used.organization_id, data, once)


def _tell_of_budget(used: _Used, now: datetime) -> NewEvent:
    data = {
        "scope": used.scope,
        "id": str(used.id),
        "name": used.name,
        "interval": used.reset or "lifetime",
        **_amounts(used, now),
    }
    once = f"{used.id}|{used.subject_id}|{used.limit_nano}|{used.step}|{_period(used, now)}"
    return NewEvent("budget.used", used.organization_id, data, once)


def _amounts(used: _Used, now: datetime) -> dict[str, Any]:
    reset = _interval(used).reset
    return {
        "limit_usd": format_usd(used.limit_nano),
        "spent_usd": format_usd(used.spent_nano),
        "percent": used.step,
        "resets_at": None if reset is None else format_time(reset.ends_at(now)),
    }


def _interval(used: _Used) -> BudgetInterval:
    return BudgetInterval(used.reset or BudgetInterval.LIFETIME)


def _period(used: _Used, now: datetime) -> str:
    """Names the present period of a limit; one that is never reset is told once a month."""
    reset = _interval(used).reset
    return f"{now:%Y-%m}" if reset is None else reset.began_at(now).date().isoformat()
