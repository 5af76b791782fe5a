-- Finds organizations that have spent or hold more credits than they have.
--
-- Returns: a sentence for each such organization.
-- Locks: none.
SELECT
    format(
        'organization %s: %s available',
        organization_id, posted_credits - posted_debits - pending_debits
    )
FROM billing_account
WHERE kind = 'credits' AND posted_credits < posted_debits + pending_debits
ORDER BY organization_id
