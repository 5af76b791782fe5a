-- Finds generations for which more was refunded than was paid.
--
-- Returns: a sentence for each such generation.
-- Locks: none.
SELECT
    format(
        'generation %s: %s refunded of %s paid', r.reference, r.posted_nano, coalesce(p.paid, 0)
    )
FROM billing_transfer AS r
LEFT JOIN LATERAL (
    SELECT sum(t.posted_nano) AS paid
    FROM billing_transfer AS t
    WHERE t.reference = r.reference AND t.kind IN ('usage', 'excess') AND t.status = 'posted'
) AS p ON true
WHERE r.kind = 'refund' AND r.posted_nano > coalesce(p.paid, 0)
ORDER BY r.id
