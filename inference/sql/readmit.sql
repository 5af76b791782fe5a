-- Stores a generation again that the database has lost: pending, with its hold and its journal.
--
-- It was admitted once, so versions and budgets are not compared. It is left out if its
-- organization, key, endpoint or price was lost too. A hold that the balance does not cover is left
-- out alone: what the generation costs is then an excess under review.
--
-- Parameters: $1 jsonb, a `GenerationRow`; $2 text, its id.
-- Returns: the id, if the generation was stored.
--
-- Lock order: the credits account, then meters by subject, as in admit.sql.
WITH given AS (
    SELECT *
    FROM jsonb_to_record($1::jsonb) AS v (
        organization_id uuid, workspace_id uuid, api_key_id uuid, member_id uuid,
        private_endpoint_id uuid, model_endpoint_id uuid, price_id bigint, attestation_id bigint,
        hold_nano bigint, upstream_hold_nano bigint, held_tokens bigint, limit_subjects uuid[],
        images int, units jsonb, credits_id bigint, usage_id bigint
    )
),

locked_account AS MATERIALIZED (
    SELECT
        ctid AS tid, organization_id, posted_credits - posted_debits - pending_debits AS available
    FROM billing_account
    WHERE id = (SELECT credits_id FROM given) AND kind = 'credits'
    FOR NO KEY UPDATE
),

lost AS MATERIALIZED (
    SELECT
        b.*, a.tid,
        array_remove(
            ARRAY[b.api_key_id, b.workspace_id, b.member_id] || b.limit_subjects, NULL
        ) AS subjects,
        CASE WHEN b.hold_nano <= a.available THEN b.hold_nano ELSE 0 END AS held_nano
    FROM given AS b
    INNER JOIN locked_account AS a ON b.organization_id = a.organization_id
    INNER JOIN accounts_apikey AS k ON b.api_key_id = k.id
    INNER JOIN accounts_workspace AS w ON b.workspace_id = w.id
    INNER JOIN catalog_priceversion AS p ON b.price_id = p.id
    LEFT JOIN accounts_member AS u ON b.member_id = u.id
    LEFT JOIN catalog_modelendpoint AS e ON b.model_endpoint_id = e.id
    LEFT JOIN endpoints_privateendpoint AS r ON b.private_endpoint_id = r.id
    LEFT JOIN endpoints_attestation AS t ON b.attestation_id = t.id
    WHERE
        num_nonnulls(u.id, e.id, r.id, t.id) = num_nonnulls(
            b.member_id, b.model_endpoint_id, b.private_endpoint_id, b.attestation_id
        )
        AND NOT EXISTS (SELECT 1 FROM inference_generation AS g WHERE g.id = $2::text)
),

locked_meters AS MATERIALIZED (
    SELECT ctid AS tid
    FROM billing_meter
    WHERE subject_id = any(array(SELECT unnest(subjects) FROM lost))
    ORDER BY subject_id
    FOR NO KEY UPDATE
),

stored AS (
    INSERT INTO inference_generation
    SELECT g.*
    FROM (
        SELECT
            $1::jsonb || jsonb_build_object(
                'created_at', to_timestamp(split_part($2::text, '-', 2)::bigint),
                'hold_nano', held_nano, 'status', 'pending', 'units', NULL, 'is_estimated', FALSE,
                'cost_nano', 0, 'upstream_cost_nano', 0, 'attempts', '[]'::jsonb
            ) AS made
        FROM lost
    ) AS l
    CROSS JOIN LATERAL jsonb_populate_record(NULL::inference_generation, l.made) AS g
    WHERE (SELECT count(*) FROM locked_meters) >= 0
    RETURNING id
),

holds AS (
    INSERT INTO billing_transfer (
        organization_id, kind, debit_id, credit_id, amount_nano, status, reference
    )
    SELECT organization_id, 'usage', credits_id, usage_id, held_nano, 'pending', $2::text
    FROM lost
    WHERE held_nano > 0
),

journals AS (
    INSERT INTO inference_journal (
        generation_id, prompt_tokens, completion_tokens, images, units, beat_at
    )
    SELECT $2::text, 0, 0, coalesce(images, 0), units, now() FROM lost
),

held_account AS MATERIALIZED (
    SELECT causeway_hold_accounts_1(ARRAY[tid], ARRAY[held_nano]) FROM lost WHERE held_nano > 0
),

held_meters AS MATERIALIZED (
    SELECT count(h.subject_id) AS meters
    FROM lost AS l
    CROSS JOIN (
        SELECT array_agg(tid) AS tids, ARRAY[count(*)::int] AS length FROM locked_meters
    ) AS m
    CROSS JOIN LATERAL causeway_hold_meters_1(
        m.tids, array_fill(l.held_nano, m.length), array_fill(l.upstream_hold_nano, m.length),
        array_fill(coalesce(l.held_tokens, 0), m.length), array_fill(1::bigint, m.length)
    ) AS h
)

SELECT id FROM stored
WHERE (SELECT count(*) FROM held_account) >= 0 AND (SELECT meters FROM held_meters) IS NOT NULL
