"""Recomputes the ledger from its transfers, and says where an account or a deposit differs.

Each check is one statement, so that it sees one moment of a ledger in use, and returns nothing but
differences: its memory does not grow with the ledger.
"""

from __future__ import annotations

from typing import Final

from django.db import connection

# Of each kind; a ledger with more is not read line by line.
MAX_DIFFERENCES: Final = 1_000

ACCOUNTS: Final = """
WITH sums AS (
    SELECT account_id, sum(debits) AS debits, sum(credits) AS credits, sum(pending) AS pending
    FROM (
        SELECT debit_id AS account_id, coalesce(posted_nano, 0) AS debits, 0 AS credits,
               CASE status WHEN 'pending' THEN amount_nano ELSE 0 END AS pending
        FROM billing_transfer
        UNION ALL
        SELECT credit_id, 0, coalesce(posted_nano, 0), 0 FROM billing_transfer
    ) AS sides GROUP BY account_id
)
SELECT format(
    'account %s (%s of %s): posted %s debits and %s credits, pending %s; its transfers make '
    '%s, %s, %s',
    a.id, a.kind, a.organization_id, a.posted_debits, a.posted_credits, a.pending_debits,
    coalesce(s.debits, 0), coalesce(s.credits, 0), coalesce(s.pending, 0))
FROM billing_account a LEFT JOIN sums s ON s.account_id = a.id
WHERE (a.posted_debits, a.posted_credits, a.pending_debits)
      <> (coalesce(s.debits, 0), coalesce(s.credits, 0), coalesce(s.pending, 0))
ORDER BY a.id
"""

BALANCES: Final = """
SELECT format('organization %s: its accounts add up to %s instead of 0',
              organization_id, sum(posted_credits - posted_debits))
FROM billing_account GROUP BY organization_id
HAVING sum(posted_credits - posted_debits) <> 0
ORDER BY organization_id
"""

OVERDRAFTS: Final = """
SELECT format('organization %s: %s available', organization_id,
              posted_credits - posted_debits - pending_debits)
FROM billing_account
WHERE kind = 'credits' AND posted_credits < posted_debits + pending_debits
ORDER BY organization_id
"""

STRANGERS: Final = """
SELECT format('transfer %s: its accounts are not those of organization %s', t.id,
              t.organization_id)
FROM billing_transfer t
JOIN billing_account d ON d.id = t.debit_id
JOIN billing_account c ON c.id = t.credit_id
WHERE d.organization_id <> t.organization_id OR c.organization_id <> t.organization_id
ORDER BY t.id
"""

REFUNDS: Final = """
SELECT format('generation %s: %s refunded of %s paid', r.reference, r.posted_nano,
              coalesce(p.paid, 0))
FROM billing_transfer r
LEFT JOIN LATERAL (
    SELECT sum(t.posted_nano) AS paid FROM billing_transfer t
    WHERE t.reference = r.reference AND t.kind IN ('usage', 'excess') AND t.status = 'posted'
) p ON true
WHERE r.kind = 'refund' AND r.posted_nano > coalesce(p.paid, 0)
ORDER BY r.id
"""

DEPOSITS: Final = """
SELECT CASE
    WHEN d.id IS NULL THEN format('transfer %s: there is no credited %s', t.id, t.reference)
    WHEN t.id IS NULL THEN format('deposit %s: credited without a transfer', d.id)
    ELSE format('deposit %s: %s to %s, its transfer %s to %s', d.id, d.amount_nano,
                d.organization_id, t.posted_nano, t.organization_id)
    END
FROM (SELECT * FROM billing_deposit WHERE status = 'credited') d
FULL JOIN (SELECT * FROM billing_transfer WHERE kind = 'deposit') t
    ON t.reference = 'deposit:' || d.id
WHERE d.id IS NULL OR t.id IS NULL OR t.status <> 'posted'
   OR (d.amount_nano, d.organization_id) <> (t.posted_nano, t.organization_id)
"""

CHECKS: Final = (ACCOUNTS, BALANCES, OVERDRAFTS, STRANGERS, REFUNDS, DEPOSITS)


def differences() -> list[str]:
    """Returns what does not add up, a sentence each; an empty list is a ledger in order."""
    return [text for check in CHECKS for text in found_by(check)]


def found_by(check: str) -> list[str]:
    """Returns the differences that one statement finds, at most so many."""
    with connection.cursor() as cursor:
        cursor.execute(check)
        return [text for (text,) in cursor.fetchmany(MAX_DIFFERENCES)]
