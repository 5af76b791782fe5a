-- Stores a batch of admitted requests: the pending generations, their holds and their journals.
--
-- Admission decided by earlier readings. A row is stored only if they are still valid: its
-- organization and the catalogue have the same version, its key has not expired, and balance and
-- meters cover the whole batch. Any other row is left out, and the caller decides it again.
--
-- Parameters: $1 json, an array of `GenerationRow`;
--             $2 json, an array of `Ceiling`: the highest values that a meter may have before this
--             batch. `cost` counts credits, `total` credits and own credentials; both include the
--             holds of running requests. `spent` and `spent_total` count the same without the
--             holds; `requests` counts requests, `tokens` the tokens of ended requests and those
--             held for running ones, `running` the requests in flight;
--             $3 uuid[], the subjects whose meters are returned;
--             $4 text, $5 text, the lowest and the highest id of the batch, which name its
--             partitions.
-- Returns: the ids of the stored generations, without a meter, and the instants at which they were
--          stored, in Unix seconds. An id that existed before was stored by an earlier try of this
--          statement whose result was lost: ids are random. Then the
--          meters that count stored generations, as an array: the time, and the columns of
--          `MeterReading`.
--
-- Lock order: credits accounts by id, organizations by id, the catalogue's version, meters by
--             subject.
--             Every change of an organization's keys, endpoints, credentials and rules moves its
--             version, so one shared lock holds all its authority. A writer that revokes, disables
--             or delists waits for this statement, so a change that was acknowledged is seen by
--             every later batch. Such writers lock the organization last, when they commit, and
--             after it the catalogue's version.
--             The account lock is exclusive and comes before the shared ones: a writer that waits
--             for the organization then waits for one batch, not for a queue of batches.
--
-- Accounts and meters have many versions while any transaction stays open. Each is searched once,
-- from the end of its index, where the newest version is (`>= … <= … ORDER BY … DESC LIMIT 1`: with
-- `=` PostgreSQL would begin with the oldest). The functions change the locked rows by their
-- addresses (`ctid`); billing/migrations/0001_tables.py has them and says why.
--
-- The statement is planned once, perhaps while its tables are empty. Other rows are therefore found
-- by an array of their keys, which every plan answers from the index.
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
        credits_id bigint, usage_id bigint, key_expires_at timestamptz,
        routing_version bigint, catalog_version bigint
    )
),

already_stored AS MATERIALIZED (
    SELECT id, created_at
    FROM inference_generation
    WHERE id = any(array(SELECT id FROM batch)) AND id >= $4::text AND id <= $5::text
),

locked_accounts AS MATERIALIZED (
    SELECT a.*
    FROM (SELECT DISTINCT credits_id AS id FROM batch ORDER BY credits_id) AS w
    CROSS JOIN LATERAL (
        SELECT
            a.ctid AS tid, a.id, a.organization_id,
            a.posted_credits - a.posted_debits - a.pending_debits AS available
        FROM billing_account AS a
        WHERE a.id >= w.id AND a.id <= w.id
        ORDER BY a.id DESC
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS a
),

locked_organizations AS MATERIALIZED (
    SELECT o.id, o.routing_version
    FROM accounts_organization AS o
    WHERE o.id = any(array(SELECT organization_id FROM locked_accounts))
    ORDER BY o.id
    FOR SHARE
),

locked_catalog AS MATERIALIZED (
    SELECT causeway_hold_catalog() AS version
    WHERE (SELECT count(*) FROM locked_organizations) >= 0
),

current_rows AS MATERIALIZED (
    SELECT
        b.*,
        array_remove(
            ARRAY[b.api_key_id, b.workspace_id, b.member_id] || b.limit_subjects, NULL
        ) AS subjects
    FROM batch AS b
    INNER JOIN locked_organizations AS o
        ON b.organization_id = o.id AND b.routing_version = o.routing_version
    WHERE
        b.catalog_version = (SELECT version FROM locked_catalog)
        AND (b.key_expires_at IS NULL OR b.key_expires_at > now())
        AND NOT EXISTS (SELECT 1 FROM already_stored AS s WHERE s.id = b.id)
),

ceilings AS (
    SELECT *
    FROM json_to_recordset($2::json) AS c (
        subject_id uuid, cost bigint, total bigint, requests bigint, spent bigint,
        spent_total bigint, tokens bigint, running bigint
    )
),

locked_meters AS MATERIALIZED (
    SELECT m.*
    FROM (
        SELECT DISTINCT s.id FROM current_rows AS r CROSS JOIN LATERAL unnest(r.subjects) AS s (id)
        ORDER BY s.id
    ) AS w
    CROSS JOIN LATERAL (
        SELECT
            m.ctid AS tid, m.subject_id, m.cost + m.held_cost AS cost,
            -- A tenant's own prices and servers may fill a meter: sums may exceed a bigint.
            m.byok::numeric + m.held_byok AS byok, m.requests, m.cost AS spent,
            m.byok::numeric AS spent_byok, m.tokens::numeric + m.held_tokens AS tokens, m.running
        FROM billing_meter AS m
        WHERE m.subject_id >= w.id AND m.subject_id <= w.id
        ORDER BY m.subject_id DESC
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS m
),

-- Organizations whose balance, and subjects whose budget, does not cover the batch.
exhausted AS MATERIALIZED (
    SELECT a.organization_id AS id
    FROM locked_accounts AS a
    INNER JOIN (
        SELECT credits_id, sum(hold_nano) AS hold FROM current_rows GROUP BY credits_id
    ) AS w ON a.id = w.credits_id
    WHERE w.hold > a.available
    UNION ALL
    SELECT m.subject_id AS id
    FROM locked_meters AS m
    INNER JOIN ceilings AS c ON m.subject_id = c.subject_id
    WHERE
        m.cost > c.cost OR least(m.cost + m.byok, 9223372036854775807) > c.total
        OR m.spent > c.spent OR least(m.spent + m.spent_byok, 9223372036854775807) > c.spent_total
        OR m.requests > c.requests OR least(m.tokens, 9223372036854775807) > c.tokens
        OR m.running > c.running
),

accepted AS MATERIALIZED (
    SELECT w.*
    FROM current_rows AS w
    WHERE
        -- Counting takes every lock, in order, before the first row is changed.
        (SELECT count(*) FROM locked_meters) >= 0
        AND NOT EXISTS (
            SELECT 1 FROM exhausted AS e
            WHERE e.id = any(w.subjects) OR (e.id = w.organization_id AND w.hold_nano > 0)
        )
),

holds AS (
    INSERT INTO billing_transfer (
        organization_id, kind, debit_id, credit_id, amount_nano, status, reference
    )
    SELECT organization_id, 'usage', credits_id, usage_id, hold_nano, 'pending', id
    FROM accepted
    WHERE hold_nano > 0
),

held_accounts AS MATERIALIZED (
    SELECT causeway_hold_accounts_1(array_agg(a.tid), array_agg(w.hold))
    FROM (
        SELECT credits_id, sum(hold_nano)::bigint AS hold FROM accepted GROUP BY credits_id
    ) AS w
    INNER JOIN locked_accounts AS a ON w.credits_id = a.id
    WHERE w.hold > 0
),

held_meters AS MATERIALIZED (
    SELECT h.*
    FROM (
        SELECT
            array_agg(m.tid) AS tids, array_agg(w.cost) AS costs, array_agg(w.byok) AS byoks,
            array_agg(w.tokens) AS tokens, array_agg(w.requests) AS requests
        FROM (
            SELECT
                s.id, sum(r.hold_nano)::bigint AS cost, sum(r.upstream_hold_nano)::bigint AS byok,
                sum(r.held_tokens)::bigint AS tokens, count(*) AS requests
            FROM accepted AS r
            CROSS JOIN LATERAL unnest(r.subjects) AS s (id)
            GROUP BY s.id
        ) AS w
        INNER JOIN locked_meters AS m ON w.id = m.subject_id
    ) AS e
    CROSS JOIN LATERAL causeway_hold_meters_1(
        e.tids, e.costs, e.byoks, e.tokens, e.requests
    ) AS h
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
        model_endpoint_id, provider_name, price_id, is_byok, attestation_id, now(),
        request_id, hold_nano, upstream_hold_nano, held_tokens, limit_subjects, 'pending',
        FALSE, 0, 0, '[]'::jsonb
    FROM accepted
    RETURNING id, created_at
),

journals AS (
    INSERT INTO inference_journal (
        generation_id, prompt_tokens, completion_tokens, images, units, beat_at
    )
    SELECT id, 0, 0, coalesce(images, 0), units, now() FROM accepted
)

SELECT
    id, NULL::json AS meter, floor(extract(EPOCH FROM created_at))::bigint AS stored_at
FROM stored
UNION ALL
SELECT
    id, NULL AS meter, floor(extract(EPOCH FROM created_at))::bigint AS stored_at
FROM already_stored
WHERE (SELECT count(*) FROM held_accounts) >= 0
UNION ALL
SELECT
    NULL AS id,
    json_build_array(
        now(), subject_id, day, cost_daily, cost_weekly, cost_monthly, cost, byok_daily,
        byok_weekly, byok_monthly, byok, held_cost, held_byok, requests, minute, requests_before,
        requests_before_day, running, tokens, tokens_before, held_tokens
    ) AS meter,
    NULL AS stored_at
FROM held_meters
WHERE subject_id = any($3::uuid[])
