-- Compares each decision about an excess with its transfer. Nothing moves before a decision. The
-- transfers of archived generations are in opening balances.
--
-- Returns: a sentence for each excess that differs.
-- Locks: none.
WITH moved AS (
    SELECT
        reference, organization_id,
        sum(CASE kind WHEN 'excess' THEN posted_nano ELSE 0 END) AS charged,
        sum(CASE kind WHEN 'write_off' THEN posted_nano ELSE 0 END) AS written_off
    FROM billing_transfer
    WHERE kind IN ('excess', 'write_off') AND status = 'posted'
    GROUP BY reference, organization_id
)

SELECT
    format(
        'excess of %s: %s is %s, its transfers charged %s and wrote off %s',
        e.reference, e.amount_nano, e.status, coalesce(m.charged, 0), coalesce(m.written_off, 0)
    )
FROM billing_excess AS e
LEFT JOIN moved AS m ON e.reference = m.reference AND e.organization_id = m.organization_id
WHERE
    (coalesce(m.charged, 0), coalesce(m.written_off, 0))
    <> (
        CASE e.status WHEN 'charged' THEN e.amount_nano ELSE 0 END,
        CASE e.status WHEN 'written_off' THEN e.amount_nano ELSE 0 END
    )
    AND NOT EXISTS (
        SELECT 1 FROM billing_fold AS f WHERE e.reference >= f.begin AND e.reference < f.end
    )
ORDER BY e.reference
