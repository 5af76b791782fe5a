-- Finds transfers between accounts of another organization than their own, and transfers and
-- opening balances whose accounts do not exist: PostgreSQL does not check these references when a
-- row is stored.
--
-- Returns: a sentence for each such transfer or opening balance.
-- Locks: none.
SELECT
    format('transfer %s: its accounts are not those of organization %s', t.id, t.organization_id)
FROM billing_transfer AS t
LEFT JOIN billing_account AS d ON t.debit_id = d.id
LEFT JOIN billing_account AS c ON t.credit_id = c.id
WHERE
    d.organization_id IS DISTINCT FROM t.organization_id
    OR c.organization_id IS DISTINCT FROM t.organization_id
UNION ALL
SELECT format('fold %s: its account %s does not exist', p.fold_id, p.account_id)
FROM billing_opening AS p
LEFT JOIN billing_account AS a ON p.account_id = a.id
WHERE a.id IS NULL
