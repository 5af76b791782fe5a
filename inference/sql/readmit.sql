-- Stores generations again that the database has lost: pending, with their holds and journals.
--
-- They were admitted once, so versions and budgets are not compared. One whose organization, key,
-- endpoint or price was lost too is left out. A hold that the balance does not cover is left out
-- alone: what the generation costs is then an excess under review.
--
-- Parameters: $1 json, an array of `GenerationRow`;
--             $2 text, $3 text, the lowest and the highest id of the batch, which name its
--             partitions.
-- Returns: the ids of the stored generations.
--
-- Lock order: credits accounts by id, then meters by subject, as in admit.sql.
WITH batch AS (
    SELECT *
    FROM json_to_recordset($1::json) AS v (
        id text, organization_id uuid, workspace_id uuid, api_key_id uuid, member_id uuid,
        end_user text, session_id text, trace text, preset_id uuid, region text,
        http_referer text, app_title text, user_agent text, operation text, streamed bool,
        model text, private_endpoint_id uuid,
        model_endpoint_id uuid, provider_name text, price_id bigint, is_byok bool,
        attestation_id bigint, request_id text, hold_nano bigint, upstream_hold_nano bigint,
        held_tokens bigint, limit_subjects uuid[], images int, units jsonb,
        credits_id bigint, usage_id bigint
    )
),

already_stored AS MATERIALIZED (
    SELECT id
    FROM inference_generation
    WHERE id = any(array(SELECT id FROM batch)) AND id >= $2::text AND id <= $3::text
),

locked_accounts AS MATERIALIZED (
    SELECT
        a.ctid AS tid, a.id, a.organization_id,
        a.posted_credits - a.posted_debits - a.pending_debits AS available
    FROM billing_account AS a
    WHERE a.id = any(array(SELECT credits_id FROM batch)) AND a.kind = 'credits'
    ORDER BY a.id
    FOR NO KEY UPDATE
),

lost AS MATERIALIZED (
    SELECT
        b.*,
        array_remove(
            ARRAY[b.api_key_id, b.workspace_id, b.member_id] || b.limit_subjects, NULL
        ) AS subjects,
        CASE
            WHEN
                sum(b.hold_nano) OVER (PARTITION BY b.credits_id ORDER BY b.id) <= a.available
                THEN b.hold_nano
            ELSE 0
        END AS held_nano
    FROM batch AS b
    INNER JOIN locked_accounts AS a
        ON b.credits_id = a.id AND b.organization_id = a.organization_id
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
        AND NOT EXISTS (SELECT 1 FROM already_stored AS s WHERE s.id = b.id)
),

locked_meters AS MATERIALIZED (
    SELECT m.ctid AS tid, m.subject_id
    FROM billing_meter AS m
    WHERE
        m.subject_id = any(
            array(SELECT s.id FROM lost AS r CROSS JOIN LATERAL unnest(r.subjects) AS s (id))
        )
    ORDER BY m.subject_id
    FOR NO KEY UPDATE
),

stored AS (
    INSERT INTO inference_generation (
        id, organization_id, workspace_id, api_key_id, member_id, end_user, session_id, trace,
        region, http_referer, app_title, user_agent, operation, streamed, model,
        private_endpoint_id, preset_id,
        model_endpoint_id, provider_name, price_id, is_byok, attestation_id, created_at,
        request_id, hold_nano, upstream_hold_nano, held_tokens, limit_subjects, status,
        is_estimated, cost_nano, upstream_cost_nano, attempts
    )
    SELECT
        id, organization_id, workspace_id, api_key_id, member_id, end_user, session_id, trace,
        region, http_referer, app_title, user_agent, operation, streamed, model,
        private_endpoint_id, preset_id,
        model_endpoint_id, provider_name, price_id, is_byok, attestation_id,
        to_timestamp(split_part(id, '-', 2)::bigint),
        request_id, held_nano, upstream_hold_nano, held_tokens, limit_subjects, 'pending',
        FALSE, 0, 0, '[]'::jsonb
    FROM lost
    WHERE (SELECT count(*) FROM locked_meters) >= 0
    RETURNING id
),

holds AS (
    INSERT INTO billing_transfer (
        organization_id, kind, debit_id, credit_id, amount_nano, status, reference
    )
    SELECT organization_id, 'usage', credits_id, usage_id, held_nano, 'pending', id
    FROM lost
    WHERE held_nano > 0
),

journals AS (
    INSERT INTO inference_journal (
        generation_id, prompt_tokens, completion_tokens, images, units, beat_at
    )
    SELECT id, 0, 0, coalesce(images, 0), units, now() FROM lost
),

held_accounts AS MATERIALIZED (
    SELECT causeway_hold_accounts_1(array_agg(a.tid), array_agg(w.hold))
    FROM (
        SELECT credits_id, sum(held_nano)::bigint AS hold FROM lost GROUP BY credits_id
    ) AS w
    INNER JOIN locked_accounts AS a ON w.credits_id = a.id
    WHERE w.hold > 0
),

held_meters AS MATERIALIZED (
    SELECT count(h.subject_id) AS meters
    FROM (
        SELECT
            array_agg(m.tid) AS tids, array_agg(w.cost) AS costs, array_agg(w.byok) AS byoks,
            array_agg(w.tokens) AS tokens, array_agg(w.requests) AS requests
        FROM (
            SELECT
                s.id, sum(r.held_nano)::bigint AS cost, sum(r.upstream_hold_nano)::bigint AS byok,
                coalesce(sum(r.held_tokens), 0)::bigint AS tokens, count(*) AS requests
            FROM lost AS r
            CROSS JOIN LATERAL unnest(r.subjects) AS s (id)
            GROUP BY s.id
        ) AS w
        INNER JOIN locked_meters AS m ON w.id = m.subject_id
    ) AS e
    CROSS JOIN LATERAL causeway_hold_meters_1(
        e.tids, e.costs, e.byoks, e.tokens, e.requests
    ) AS h
)

SELECT id FROM stored
WHERE
    (SELECT count(*) FROM held_accounts) >= 0
    AND (SELECT sum(meters) FROM held_meters) IS NOT NULL
