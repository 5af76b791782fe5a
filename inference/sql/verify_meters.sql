-- Compares the counts and the holds of each meter with the generations of its subject, and with
-- what its archived generations had counted.
--
-- Returns: a sentence for each meter that differs.
-- Locks: none.
WITH used AS (
    SELECT
        s.subject_id,
        sum(CASE g.status WHEN 'pending' THEN 0 ELSE g.cost_nano END) AS cost,
        sum(CASE WHEN g.status <> 'pending' AND g.is_byok THEN g.upstream_cost_nano ELSE 0 END)
            AS byok,
        sum(CASE g.status WHEN 'pending' THEN g.hold_nano ELSE 0 END) AS held_cost,
        sum(CASE g.status WHEN 'pending' THEN g.upstream_hold_nano ELSE 0 END) AS held_byok,
        sum(CASE g.status WHEN 'pending' THEN g.held_tokens END) AS held_tokens,
        -- A generation of an earlier release has no held tokens and was not counted.
        count(g.held_tokens) FILTER (WHERE g.status = 'pending') AS running
    FROM inference_generation AS g
    CROSS JOIN
        LATERAL unnest(
            ARRAY[g.api_key_id, g.workspace_id, g.member_id] || g.limit_subjects
        ) AS s (subject_id)
    WHERE s.subject_id IS NOT NULL
    GROUP BY s.subject_id
),

archived AS (
    SELECT subject_id, sum(cost) AS cost, sum(byok) AS byok
    FROM billing_meteropening
    GROUP BY subject_id
)

SELECT
    format(
        'meter %s: cost %s, own credentials %s, held %s and %s; '
        'its generations make %s, %s, %s and %s; '
        '%s requests run with %s tokens; its generations make %s and %s',
        m.subject_id, m.cost, m.byok, m.held_cost, m.held_byok,
        coalesce(u.cost, 0) + coalesce(p.cost, 0),
        least(coalesce(u.byok, 0) + coalesce(p.byok, 0), 9223372036854775807),
        coalesce(u.held_cost, 0), coalesce(u.held_byok, 0),
        m.running, m.held_tokens, coalesce(u.running, 0), coalesce(u.held_tokens, 0)
    )
FROM billing_meter AS m
LEFT JOIN used AS u ON m.subject_id = u.subject_id
LEFT JOIN archived AS p ON m.subject_id = p.subject_id
WHERE
    (m.cost, m.byok, m.held_cost, m.held_byok, m.running, m.held_tokens)
    <> (
        coalesce(u.cost, 0) + coalesce(p.cost, 0),
        least(coalesce(u.byok, 0) + coalesce(p.byok, 0), 9223372036854775807),
        coalesce(u.held_cost, 0), coalesce(u.held_byok, 0), coalesce(u.running, 0),
        coalesce(u.held_tokens, 0)
    )
ORDER BY m.subject_id
