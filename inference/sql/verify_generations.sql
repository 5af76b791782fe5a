-- Compares the cost or the hold of each generation with its transfers.
--
-- An operator's decision about an excess moves money of its own, which is no cost of the
-- generation.
-- Generations from before there were reviews have such transfers without one.
--
-- Returns: a sentence for each generation that differs.
-- Locks: none.
WITH moved AS (
    SELECT
        reference,
        sum(coalesce(posted_nano, 0)) AS paid,
        sum(CASE status WHEN 'pending' THEN amount_nano ELSE 0 END) AS held
    FROM billing_transfer AS t
    WHERE
        kind = 'usage'
        OR kind IN ('excess', 'write_off')
        AND NOT EXISTS (
            SELECT 1 FROM billing_excess AS e
            WHERE e.reference = t.reference AND e.organization_id = t.organization_id
        )
    GROUP BY reference
)

SELECT
    CASE
        WHEN g.id IS NULL
            THEN
                format('generation %s: it has transfers and does not exist', m.reference)
        WHEN g.status = 'pending'
            THEN
                format(
                    'generation %s: holds %s, its transfers hold %s and paid %s',
                    g.id, g.hold_nano, coalesce(m.held, 0), coalesce(m.paid, 0)
                )
        ELSE
            format(
                'generation %s: ended at a cost of %s, its transfers paid %s and hold %s',
                g.id, g.cost_nano, coalesce(m.paid, 0), coalesce(m.held, 0)
            )
    END
FROM inference_generation AS g
FULL JOIN moved AS m ON g.id = m.reference
WHERE
    g.id IS NULL
    OR coalesce(m.paid, 0) <> CASE g.status WHEN 'pending' THEN 0 ELSE g.cost_nano END
    OR coalesce(m.held, 0) <> CASE g.status WHEN 'pending' THEN g.hold_nano ELSE 0 END
