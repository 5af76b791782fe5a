-- Ends a batch of generations: stores their outcomes, ends their holds, moves their costs between
-- accounts and counts them on the meters.
--
-- A generation ends once. A row whose generation has ended already, for instance because the
-- sweeper took its worker for dead, changes nothing.
--
-- The hold bounds any honest usage, so nothing beyond it is charged. What an upstream claimed
-- beyond what was allowed is stored as an excess under review, and no money moves for it.
--
-- Parameters: $1 json, an array of `SettlementRow`, at most one row for each generation;
--             $2 text, $3 text, the lowest and the highest id of the batch, which name its
--             partitions.
-- Returns: the ids of the generations that ended now.
--
-- Lock order: generations (those of the batch, in no fixed order: a generation has one worker, and
--             the sweeper skips locked rows) and their transfers, which name the accounts; accounts
--             by id, meters by subject; then the journals of the locked generations.
--
-- Accounts and meters are searched once, from the end of their index, and changed by their
-- addresses: see admit.sql for the reason.
WITH batch AS (
    SELECT *
    FROM json_to_recordset($1::json) AS v (
        id text, status text, prompt_tokens bigint, completion_tokens bigint,
        cached_tokens bigint, cache_write_tokens bigint, reasoning_tokens bigint, units jsonb,
        is_estimated bool, cost_nano bigint, upstream_cost_nano bigint,
        reported_cost_nano bigint, finish_reason text,
        native_finish_reason text, upstream_id text, upstream_model text, error_type text,
        attempts jsonb, latency_ms int, duration_ms int, claimed_prompt_tokens bigint,
        claimed_completion_tokens bigint, allowed_prompt_tokens bigint,
        allowed_completion_tokens bigint, excess_nano bigint, upstream_excess_nano bigint,
        cached_from text, retry_of text
    )
),

settled AS (
    UPDATE inference_generation AS g
    SET
        status = b.status,
        prompt_tokens = b.prompt_tokens,
        completion_tokens = b.completion_tokens,
        cached_tokens = b.cached_tokens,
        cache_write_tokens = b.cache_write_tokens,
        reasoning_tokens = b.reasoning_tokens,
        units = b.units,
        is_estimated = b.is_estimated,
        cost_nano = least(b.cost_nano, g.hold_nano),
        upstream_cost_nano = b.upstream_cost_nano,
        reported_cost_nano = b.reported_cost_nano,
        finish_reason = b.finish_reason,
        native_finish_reason = b.native_finish_reason,
        upstream_id = b.upstream_id,
        upstream_model = b.upstream_model,
        error_type = b.error_type,
        attempts = b.attempts,
        latency_ms = b.latency_ms,
        duration_ms = b.duration_ms,
        cached_from = b.cached_from,
        retry_of = b.retry_of
    FROM batch AS b
    WHERE
        g.id = b.id AND g.id = any(array(SELECT id FROM batch)) AND g.status = 'pending'
        AND g.id >= $2::text AND g.id <= $3::text
    RETURNING
        g.id, g.organization_id, g.hold_nano, g.upstream_hold_nano AS byok_hold_nano, g.cost_nano,
        CASE WHEN g.is_byok THEN g.upstream_cost_nano ELSE 0 END AS byok_cost_nano,
        array_remove(
            ARRAY[g.api_key_id, g.workspace_id, g.member_id] || g.limit_subjects, NULL
        ) AS subjects,
        g.held_tokens,
        coalesce(g.private_endpoint_id, g.model_endpoint_id) AS endpoint_id, g.provider_name,
        g.model, g.prompt_tokens, g.completion_tokens, b.claimed_prompt_tokens,
        b.claimed_completion_tokens, b.allowed_prompt_tokens, b.allowed_completion_tokens,
        coalesce(b.excess_nano, 0) + b.cost_nano - g.cost_nano AS excess_nano,
        coalesce(b.upstream_excess_nano, 0) AS upstream_excess_nano
),

-- The planner takes the number of settled rows for one, whatever the batch is, and would join them
-- with the transfers by a loop: all transfers of the batch would be searched for each of them. So
-- the costs of the batch are one value.
ended_holds AS (
    UPDATE billing_transfer AS t
    SET
        status = CASE WHEN (s.costs ->> t.reference)::bigint > 0 THEN 'posted' ELSE 'voided' END,
        posted_nano = nullif((s.costs ->> t.reference)::bigint, 0),
        ended_at = now()
    FROM (SELECT jsonb_object_agg(id, cost_nano) AS costs FROM settled) AS s
    WHERE
        t.kind = 'usage' AND t.status = 'pending'
        AND t.reference = any(array(SELECT id FROM settled))
        AND t.reference >= $2::text AND t.reference <= $3::text
    RETURNING t.debit_id, t.credit_id, t.amount_nano, coalesce(t.posted_nano, 0) AS posted_nano
),

charged AS MATERIALIZED (
    SELECT
        c.id, sum(c.held)::bigint AS held, sum(c.debits)::bigint AS debits,
        sum(c.credits)::bigint AS credits
    FROM (
        SELECT debit_id AS id, amount_nano AS held, posted_nano AS debits, 0 AS credits
        FROM ended_holds
        UNION ALL
        SELECT credit_id AS id, 0 AS held, 0 AS debits, posted_nano AS credits FROM ended_holds
    ) AS c
    GROUP BY c.id
),

used AS MATERIALIZED (
    SELECT
        s.id, sum(r.cost_nano)::bigint AS cost, sum(r.byok_cost_nano)::bigint AS byok,
        sum(r.hold_nano)::bigint AS hold, sum(r.byok_hold_nano)::bigint AS byok_hold,
        -- No limit on tokens is higher than what one generation may count.
        sum(
            least(coalesce(r.prompt_tokens, 0) + coalesce(r.completion_tokens, 0), 1000000000000)
        )::bigint AS tokens,
        coalesce(sum(r.held_tokens), 0)::bigint AS held_tokens,
        -- A worker of an earlier release did not count its requests.
        count(r.held_tokens) AS counted
    FROM settled AS r
    CROSS JOIN LATERAL unnest(r.subjects) AS s (id)
    GROUP BY s.id
),

locked_accounts AS MATERIALIZED (
    SELECT a.tid, w.held, w.debits, w.credits
    FROM (SELECT * FROM charged ORDER BY id) AS w
    CROSS JOIN LATERAL (
        SELECT a.ctid AS tid
        FROM billing_account AS a
        WHERE a.id >= w.id AND a.id <= w.id
        ORDER BY a.id DESC
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS a
),

locked_meters AS MATERIALIZED (
    SELECT
        m.tid, w.cost, w.hold, w.byok_hold, w.held_tokens, w.counted,
        -- At prices that a tenant states itself, and by tokens that its servers report, a meter may
        -- become full; nobody else waits for it.
        least(w.byok, 9223372036854775807 - m.byok) AS byok,
        least(w.tokens, 9223372036854775807 - greatest(m.tokens, 0)) AS tokens
    FROM (
        SELECT * FROM used WHERE (SELECT count(*) FROM locked_accounts) >= 0 ORDER BY id
    ) AS w
    CROSS JOIN LATERAL (
        SELECT m.ctid AS tid, m.byok, m.tokens
        FROM billing_meter AS m
        WHERE m.subject_id >= w.id AND m.subject_id <= w.id
        ORDER BY m.subject_id DESC
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS m
),

-- Counting takes every lock, in order, before the first account or meter is changed.
settled_accounts AS MATERIALIZED (
    SELECT
        causeway_settle_accounts_1(
            array_agg(tid), array_agg(held), array_agg(debits), array_agg(credits)
        )
    FROM locked_accounts
    WHERE (SELECT count(*) FROM locked_meters) >= 0
),

settled_meters AS MATERIALIZED (
    SELECT
        causeway_settle_meters_1(
            array_agg(tid), array_agg(cost), array_agg(byok), array_agg(hold),
            array_agg(byok_hold), array_agg(tokens), array_agg(held_tokens), array_agg(counted)
        )
    FROM locked_meters
),

excesses AS (
    INSERT INTO billing_excess (
        id, organization_id, reference, endpoint_id, provider_name, model, amount_nano,
        upstream_nano, claimed_prompt_tokens, claimed_completion_tokens, allowed_prompt_tokens,
        allowed_completion_tokens, status, created_at, updated_at
    )
    SELECT
        gen_random_uuid(), organization_id, id, endpoint_id, provider_name, model, excess_nano,
        upstream_excess_nano, coalesce(claimed_prompt_tokens, prompt_tokens, 0),
        coalesce(claimed_completion_tokens, completion_tokens, 0),
        coalesce(allowed_prompt_tokens, prompt_tokens, 0),
        coalesce(allowed_completion_tokens, completion_tokens, 0), 'under_review', now(), now()
    FROM settled
    WHERE excess_nano > 0 OR claimed_prompt_tokens IS NOT NULL
),

-- Journals come last: while this statement waits for an account or a meter, the heartbeat still
-- writes to them.
deleted_journals AS (
    DELETE FROM inference_journal
    WHERE
        generation_id = any(array(SELECT id FROM settled))
        AND (SELECT count(*) FROM locked_meters) >= 0
)

SELECT id FROM settled
WHERE
    (SELECT count(*) FROM settled_accounts) >= 0
    AND (SELECT count(*) FROM settled_meters) >= 0
