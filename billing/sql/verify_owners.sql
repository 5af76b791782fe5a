-- Finds transfers between accounts of another organization than their own, and transfers whose
-- accounts do not exist: PostgreSQL does not check these references when a transfer is stored.
--
-- Returns: a sentence for each such transfer.
-- Locks: none.
SELECT
    format('transfer %s: its accounts are not those of organization %s', t.id, t.organization_id)
FROM billing_transfer AS t
LEFT JOIN billing_account AS d ON t.debit_id = d.id
LEFT JOIN billing_account AS c ON t.credit_id = c.id
WHERE
    d.organization_id IS DISTINCT FROM t.organization_id
    OR c.organization_id IS DISTINCT FROM t.organization_id
ORDER BY t.id
