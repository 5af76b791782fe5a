-- Finds organizations whose accounts do not add up to zero.
--
-- Returns: a sentence for each such organization.
-- Locks: none.
SELECT
    format(
        'organization %s: its accounts add up to %s instead of 0',
        organization_id, sum(posted_credits - posted_debits)
    )
FROM billing_account
GROUP BY organization_id
HAVING sum(posted_credits - posted_debits) <> 0
ORDER BY organization_id
