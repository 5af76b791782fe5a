"""The only writer of the ledger: holds placed and ended in batches, grants, deposits and refunds.

The data plane stores a generation and its hold in one statement, and its end in another. So this
module gives the parts of those statements, common table expressions that the islands put theirs
before; everything that changes an account, a transfer or a meter stands here.

Lock order everywhere: the generations or the deposit, then accounts by key, then meters by key.
Admission has the keys, endpoints and organizations that it rests on between accounts and meters.

A statement is planned once, perhaps while its tables are empty. Rows are therefore asked for by an
array of their keys, which no plan answers but by the index on it.
"""

from __future__ import annotations

import uuid
from typing import Final

from django.db import transaction
from django.utils import timezone

from billing.models import Account, Transfer
from config.api.errors import Conflict, InvalidRequest, NotFound

# Expects ``v``, whose ``organization_id`` (uuid) are those that pay. This lock excludes others, and
# comes before all that are shared: whoever waits for those to end waits for one batch of an
# organization, and not for one after another that passes by.
TAKE_TURNS: Final = """
open_accounts AS MATERIALIZED (
    SELECT a.id, a.organization_id,
           a.posted_credits - a.posted_debits - a.pending_debits AS available
    FROM billing_account a
    WHERE a.kind = 'credits'
      AND a.organization_id = ANY(ARRAY(SELECT organization_id FROM v))
    ORDER BY a.id FOR NO KEY UPDATE
)"""

# Expects ``open_accounts``, ``wanted`` (reference text, organization_id uuid, subjects uuid[],
# hold_nano bigint, byok_hold_nano bigint) and ``ceilings`` (subject_id uuid, cost bigint, total
# bigint, requests bigint, spent bigint, spent_total bigint): how far a meter may have come before
# the batch, since its subject was first used: credits alone, together with own credentials, in
# requests, and the first two again without what is only held.
# Gives ``placed``: of ``wanted`` all that rest on accounts and meters which bear the whole batch.
# A row whose purse was emptied a moment ago is left out, for its caller to decide again.
PLACE: Final = """
open_meters AS MATERIALIZED (
    SELECT m.subject_id, m.cost + m.held_cost AS cost, m.byok + m.held_byok AS byok, m.requests,
           m.cost AS spent, m.byok AS spent_byok
    FROM billing_meter m
    WHERE m.subject_id = ANY(ARRAY(SELECT unnest(subjects) FROM wanted))
    ORDER BY m.subject_id FOR NO KEY UPDATE
),
overdrawn AS MATERIALIZED (
    SELECT a.organization_id AS purse
    FROM open_accounts a
    JOIN (SELECT organization_id, sum(hold_nano) AS hold FROM wanted GROUP BY 1) w
      USING (organization_id)
    WHERE w.hold > a.available
    UNION ALL
    SELECT m.subject_id
    FROM open_meters m JOIN ceilings c USING (subject_id)
    WHERE m.cost > c.cost OR m.cost + m.byok > c.total OR m.requests > c.requests
       OR m.spent > c.spent OR m.spent + m.spent_byok > c.spent_total
),
placed AS MATERIALIZED (
    SELECT w.* FROM wanted w
    -- Counting takes every lock, in order, before the first row is changed.
    WHERE (SELECT count(*) FROM open_meters) >= 0
      AND NOT EXISTS (
        SELECT FROM overdrawn o
        WHERE o.purse = ANY (w.subjects) OR (o.purse = w.organization_id AND w.hold_nano > 0)
      )
),
held AS (
    INSERT INTO billing_transfer
        (organization_id, kind, debit_id, credit_id, amount_nano, status, reference)
    SELECT p.organization_id, 'usage', a.id, u.id, p.hold_nano, 'pending', p.reference
    FROM placed p
    JOIN open_accounts a USING (organization_id)
    JOIN (
        SELECT id, organization_id FROM billing_account
        WHERE kind = 'usage'
          AND organization_id = ANY(ARRAY(SELECT organization_id FROM open_accounts))
    ) u USING (organization_id)
    WHERE p.hold_nano > 0
),
held_accounts AS (
    UPDATE billing_account a SET pending_debits = a.pending_debits + p.hold
    FROM (
        SELECT o.id, sum(hold_nano) AS hold
        FROM placed JOIN open_accounts o USING (organization_id) GROUP BY 1
    ) p
    WHERE a.id = p.id AND a.id = ANY(ARRAY(SELECT id FROM open_accounts)) AND p.hold > 0
),
held_meters AS (
    UPDATE billing_meter m
    SET held_cost = m.held_cost + p.cost, held_byok = m.held_byok + p.byok,
        requests = m.requests + p.requests, last_used_at = now(),
        requests_before = CASE WHEN m.minute >= date_trunc('minute', now())
                               THEN m.requests_before ELSE m.requests END,
        minute = greatest(m.minute, date_trunc('minute', now()))
    FROM (
        SELECT subject_id, sum(hold_nano) AS cost, sum(byok_hold_nano) AS byok,
               count(*) AS requests
        FROM placed, unnest(subjects) AS subject_id GROUP BY 1
    ) p
    WHERE m.subject_id = p.subject_id
      AND m.subject_id = ANY(ARRAY(SELECT subject_id FROM open_meters))
)
"""

# At midnight a transaction that began before may come after one that began later: a meter's day
# never goes back.
_SAME_PERIOD: Final = {
    "daily": "m.day >= e.today",
    "weekly": "m.day >= date_trunc('week', e.today)::date",
    "monthly": "m.day >= date_trunc('month', e.today)::date",
}

_SETTLED_PERIODS: Final = ", ".join(
    f"{kind}_{name} = CASE WHEN {same} THEN m.{kind}_{name} ELSE 0 END + e.{kind}"
    for kind in ("cost", "byok")
    for name, same in _SAME_PERIOD.items()
)

# Expects ``ended`` (reference text, organization_id uuid, subjects uuid[], hold_nano bigint,
# byok_hold_nano bigint, cost_nano bigint, byok_cost_nano bigint), a row once for each generation.
# The hold pays what it can; what exceeds it comes from what is available, and the rest is written
# off, in sight. Nothing is clamped and nothing overdrawn.
END: Final = f"""
ended_accounts AS MATERIALIZED (
    SELECT a.id, a.organization_id, a.kind,
           a.posted_credits - a.posted_debits - a.pending_debits AS available
    FROM billing_account a
    WHERE a.kind IN ('credits', 'usage', 'write_off')
      AND a.organization_id = ANY(ARRAY(
          SELECT organization_id FROM ended WHERE hold_nano > 0 OR cost_nano > 0
      ))
    ORDER BY a.id FOR NO KEY UPDATE
),
ended_meters AS MATERIALIZED (
    SELECT m.subject_id FROM billing_meter m
    WHERE m.subject_id = ANY(ARRAY(SELECT unnest(subjects) FROM ended))
      AND (SELECT count(*) FROM ended_accounts) >= 0
    ORDER BY m.subject_id FOR NO KEY UPDATE
),
paid AS MATERIALIZED (
    SELECT reference, organization_id, hold_nano, least(cost_nano, hold_nano) AS posted,
           greatest(cost_nano - hold_nano, 0) AS excess,
           sum(greatest(cost_nano - hold_nano, 0))
               OVER (PARTITION BY organization_id ORDER BY reference) AS excess_so_far,
           sum(greatest(hold_nano - cost_nano, 0)) OVER (PARTITION BY organization_id) AS freed
    FROM ended
    WHERE (hold_nano > 0 OR cost_nano > 0)
      -- Counting takes every lock, in order, before the first row is changed.
      AND (SELECT count(*) FROM ended_meters) >= 0
),
charged AS MATERIALIZED (
    SELECT p.*, least(
        p.excess, greatest(a.available + p.freed - p.excess_so_far + p.excess, 0)
    ) AS surcharge
    FROM paid p JOIN ended_accounts a ON a.organization_id = p.organization_id
    WHERE a.kind = 'credits'
),
ended_holds AS (
    UPDATE billing_transfer t
    SET status = CASE WHEN c.posted > 0 THEN 'posted' ELSE 'voided' END,
        posted_nano = nullif(c.posted, 0), ended_at = now()
    FROM charged c
    WHERE t.reference = c.reference AND t.kind = 'usage' AND t.status = 'pending'
      AND t.reference = ANY(ARRAY(SELECT reference FROM charged WHERE hold_nano > 0))
),
surcharges AS (
    INSERT INTO billing_transfer (organization_id, kind, debit_id, credit_id, amount_nano,
                                  posted_nano, status, reference, ended_at)
    SELECT c.organization_id, v.kind, d.id, u.id, v.amount, v.amount, 'posted', c.reference, now()
    FROM charged c
    CROSS JOIN LATERAL (VALUES
        ('excess', 'credits', c.surcharge), ('write_off', 'write_off', c.excess - c.surcharge)
    ) AS v(kind, source, amount)
    JOIN ended_accounts d ON d.organization_id = c.organization_id AND d.kind = v.source
    JOIN ended_accounts u ON u.organization_id = c.organization_id AND u.kind = 'usage'
    WHERE v.amount > 0
),
settled_accounts AS (
    UPDATE billing_account a
    SET pending_debits = a.pending_debits - CASE a.kind WHEN 'credits' THEN c.held ELSE 0 END,
        posted_debits = a.posted_debits + CASE a.kind
            WHEN 'credits' THEN c.posted + c.surcharge
            WHEN 'write_off' THEN c.excess - c.surcharge
            ELSE 0 END,
        posted_credits = a.posted_credits + CASE a.kind
            WHEN 'usage' THEN c.posted + c.excess ELSE 0 END
    FROM (
        SELECT organization_id, sum(hold_nano) AS held, sum(posted) AS posted,
               sum(excess) AS excess, sum(surcharge) AS surcharge
        FROM charged GROUP BY 1
    ) c
    WHERE a.organization_id = c.organization_id
      AND a.id = ANY(ARRAY(SELECT id FROM ended_accounts))
      AND (a.kind IN ('credits', 'usage') OR (a.kind = 'write_off' AND c.excess > c.surcharge))
),
settled_meters AS (
    UPDATE billing_meter m
    SET day = greatest(m.day, e.today), {_SETTLED_PERIODS},
        cost = m.cost + e.cost, byok = m.byok + e.byok,
        held_cost = m.held_cost - e.hold, held_byok = m.held_byok - e.byok_hold
    FROM (
        SELECT subject_id, sum(cost_nano) AS cost, sum(byok_cost_nano) AS byok,
               sum(hold_nano) AS hold, sum(byok_hold_nano) AS byok_hold,
               (now() AT TIME ZONE 'UTC')::date AS today
        FROM ended, unnest(subjects) AS subject_id
        WHERE (SELECT count(*) FROM ended_meters) >= 0
        GROUP BY 1
    ) e
    WHERE m.subject_id = e.subject_id
      AND m.subject_id = ANY(ARRAY(SELECT subject_id FROM ended_meters))
)
"""


class NothingToRefund(Conflict):
    """The generation paid nothing, or was refunded before."""

    error_type = "nothing_to_refund"
    message = "This generation paid nothing, or was refunded before."


def grant(organization_id: uuid.UUID, amount_nano: int, *, actor: str, note: str = "") -> Transfer:
    """Gives an organization credits; raises :class:`NotFound` for one that does not exist."""
    if amount_nano <= 0:
        raise InvalidRequest("The amount must be more than nothing.")
    with transaction.atomic():
        accounts = _locked(organization_id, Account.Kind.GRANTS, Account.Kind.CREDITS)
        return _post(
            Transfer.Kind.GRANT,
            debit=accounts[Account.Kind.GRANTS],
            credit=accounts[Account.Kind.CREDITS],
            amount_nano=amount_nano,
            actor=actor,
            note=note,
        )


def deposit(organization_id: uuid.UUID, amount_nano: int, *, reference: str, actor: str) -> bool:
    """Credits what came in from outside, once for each reference; tells whether this call did."""
    with transaction.atomic():
        accounts = _locked(organization_id, Account.Kind.DEPOSITS, Account.Kind.CREDITS)
        if Transfer.objects.filter(kind=Transfer.Kind.DEPOSIT, reference=reference).exists():
            return False
        _post(
            Transfer.Kind.DEPOSIT,
            debit=accounts[Account.Kind.DEPOSITS],
            credit=accounts[Account.Kind.CREDITS],
            amount_nano=amount_nano,
            reference=reference,
            actor=actor,
        )
    return True


def refund(generation_id: str, *, actor: str, note: str = "") -> Transfer:
    """Gives back what credits paid for a generation, all of it and once.

    Meters keep counting it: a budget limits what was used. Raises :class:`NothingToRefund`.
    """
    with transaction.atomic():
        paid = Transfer.objects.filter(
            reference=generation_id,
            kind__in=(Transfer.Kind.USAGE, Transfer.Kind.EXCESS),
            status=Transfer.Status.POSTED,
        )
        first = paid.first()
        if first is None:
            raise NothingToRefund
        accounts = _locked(first.organization_id, Account.Kind.USAGE, Account.Kind.CREDITS)
        if Transfer.objects.filter(reference=generation_id, kind=Transfer.Kind.REFUND).exists():
            raise NothingToRefund
        return _post(
            Transfer.Kind.REFUND,
            debit=accounts[Account.Kind.USAGE],
            credit=accounts[Account.Kind.CREDITS],
            amount_nano=sum(transfer.posted_nano or 0 for transfer in paid),
            reference=generation_id,
            actor=actor,
            note=note,
        )


def _locked(organization_id: uuid.UUID, *kinds: str) -> dict[str, Account]:
    rows = (
        Account.objects.for_organization(organization_id)
        .filter(kind__in=kinds)
        .order_by("pk")
        .select_for_update(no_key=True)
    )
    accounts = {account.kind: account for account in rows}
    if len(accounts) != len(kinds):
        raise NotFound("The organization does not exist.")
    return accounts


def _post(
    kind: Transfer.Kind,
    *,
    debit: Account,
    credit: Account,
    amount_nano: int,
    actor: str,
    note: str = "",
    reference: str | None = None,
) -> Transfer:
    """Stores a transfer that moves at once, between accounts that the caller has locked."""
    debit.posted_debits += amount_nano
    credit.posted_credits += amount_nano
    debit.save(update_fields=["posted_debits"])
    credit.save(update_fields=["posted_credits"])
    transfer = Transfer(
        organization_id=debit.organization_id,
        kind=kind,
        debit=debit,
        credit=credit,
        amount_nano=amount_nano,
        posted_nano=amount_nano,
        status=Transfer.Status.POSTED,
        reference=reference,
        actor=actor,
        note=note,
    )
    transfer.ended_at = transfer.created_at = timezone.now()
    transfer.save(force_insert=True)
    return transfer
