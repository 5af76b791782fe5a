-- Compares credited deposits with the transfers that credit them.
--
-- Returns: a sentence for each deposit without its transfer, each transfer without its deposit, and
--          each pair that differs.
-- Locks: none.
SELECT
    CASE
        WHEN d.id IS NULL THEN format('transfer %s: there is no credited %s', t.id, t.reference)
        WHEN t.id IS NULL THEN format('deposit %s: credited without a transfer', d.id)
        ELSE
            format(
                'deposit %s: %s to %s, its transfer %s to %s',
                d.id, d.amount_nano, d.organization_id, t.posted_nano, t.organization_id
            )
    END
FROM (SELECT * FROM billing_deposit WHERE status = 'credited') AS d
FULL JOIN (SELECT * FROM billing_transfer WHERE kind = 'deposit') AS t
    ON t.reference = 'deposit:' || d.id
WHERE
    d.id IS NULL OR t.id IS NULL OR t.status <> 'posted'
    OR (d.amount_nano, d.organization_id) <> (t.posted_nano, t.organization_id)
