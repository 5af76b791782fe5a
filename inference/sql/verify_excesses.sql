-- Finds excesses that contradict their generations: an excess belongs to a generation of its
-- organization that has ended. Archived generations have.
--
-- Returns: a sentence for each such excess.
-- Locks: none.
SELECT
    format(
        'generation %s: %s, and %s beyond its hold is %s', e.reference,
        coalesce(g.status, 'it does not exist'), e.amount_nano, e.status
    )
FROM billing_excess AS e
LEFT JOIN inference_generation AS g ON e.reference = g.id
WHERE
    (g.id IS NULL OR g.status = 'pending' OR g.organization_id <> e.organization_id)
    AND NOT EXISTS (
        SELECT 1 FROM billing_fold AS f WHERE e.reference >= f.begin AND e.reference < f.end
    )
ORDER BY e.reference
