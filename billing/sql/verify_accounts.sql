-- Compares what each account has posted and pending with the sums of its transfers and of its
-- opening balances, which are the sums of archived transfers.
--
-- Returns: a sentence for each account that differs.
-- Locks: none.
WITH sums AS (
    SELECT account_id, sum(debits) AS debits, sum(credits) AS credits, sum(pending) AS pending
    FROM (
        SELECT
            debit_id AS account_id, coalesce(posted_nano, 0) AS debits, 0 AS credits,
            CASE status WHEN 'pending' THEN amount_nano ELSE 0 END AS pending
        FROM billing_transfer
        UNION ALL
        SELECT credit_id, 0, coalesce(posted_nano, 0), 0 FROM billing_transfer
        UNION ALL
        SELECT account_id, posted_debits, posted_credits, 0 FROM billing_opening
    ) AS sides
    GROUP BY account_id
)

SELECT
    format(
        'account %s (%s of %s): posted %s debits and %s credits, pending %s; its transfers make '
        '%s, %s, %s',
        a.id, a.kind, a.organization_id, a.posted_debits, a.posted_credits, a.pending_debits,
        coalesce(s.debits, 0), coalesce(s.credits, 0), coalesce(s.pending, 0)
    )
FROM billing_account AS a
LEFT JOIN sums AS s ON a.id = s.account_id
WHERE
    (a.posted_debits, a.posted_credits, a.pending_debits)
    <> (coalesce(s.debits, 0), coalesce(s.credits, 0), coalesce(s.pending, 0))
ORDER BY a.id
