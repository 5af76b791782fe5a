-- Ends a batch of generations: stores their outcomes, ends their holds, moves their costs between
-- accounts and counts them on the meters.
--
-- A generation ends once. A row whose generation has ended already, for instance because the
-- sweeper took its worker for dead, changes nothing.
--
-- The hold bounds any honest usage, so nothing beyond it is charged. What an upstream claimed
-- beyond what was allowed is stored as an excess under review, and no money moves for it.
--
-- Parameters: $1 json, an array of `SettlementRow`, at most one row for each generation.
-- Returns: the ids of the generations that ended now.
--
-- Lock order: generations (those of the batch, in no fixed order: a generation has one worker, and
--             the sweeper skips locked rows) and their transfers, which name the accounts; accounts
--             by id, meters by subject; then the journals of the locked generations.
WITH batch AS (
    SELECT *
    FROM json_to_recordset($1::json) AS v (
        id text, status text, prompt_tokens bigint, completion_tokens bigint,
        cached_tokens bigint, cache_write_tokens bigint, reasoning_tokens bigint,
        is_estimated bool, cost_nano bigint, upstream_cost_nano bigint, finish_reason text,
        native_finish_reason text, upstream_id text, upstream_model text, error_type text,
        attempts jsonb, latency_ms int, duration_ms int, claimed_prompt_tokens bigint,
        claimed_completion_tokens bigint, allowed_prompt_tokens bigint,
        allowed_completion_tokens bigint, excess_nano bigint, upstream_excess_nano bigint
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
        is_estimated = b.is_estimated,
        cost_nano = least(b.cost_nano, g.hold_nano),
        upstream_cost_nano = b.upstream_cost_nano,
        finish_reason = b.finish_reason,
        native_finish_reason = b.native_finish_reason,
        upstream_id = b.upstream_id,
        upstream_model = b.upstream_model,
        error_type = b.error_type,
        attempts = b.attempts,
        latency_ms = b.latency_ms,
        duration_ms = b.duration_ms
    FROM batch AS b
    WHERE g.id = b.id AND g.id = any(array(SELECT id FROM batch)) AND g.status = 'pending'
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

ended_holds AS (
    UPDATE billing_transfer AS t
    SET
        status = CASE WHEN s.cost_nano > 0 THEN 'posted' ELSE 'voided' END,
        posted_nano = nullif(s.cost_nano, 0),
        ended_at = now()
    FROM settled AS s
    WHERE
        t.reference = s.id AND t.kind = 'usage' AND t.status = 'pending'
        AND t.reference = any(array(SELECT id FROM settled))
    RETURNING t.debit_id, t.credit_id, t.amount_nano, coalesce(t.posted_nano, 0) AS posted_nano
),

charged AS MATERIALIZED (
    SELECT debit_id, credit_id, sum(amount_nano) AS held, sum(posted_nano) AS cost
    FROM ended_holds
    GROUP BY debit_id, credit_id
),

used AS MATERIALIZED (
    SELECT
        s.subject_id, sum(r.cost_nano) AS cost, sum(r.byok_cost_nano) AS byok,
        sum(r.hold_nano) AS hold, sum(r.byok_hold_nano) AS byok_hold,
        sum(coalesce(r.prompt_tokens, 0) + coalesce(r.completion_tokens, 0)) AS tokens,
        coalesce(sum(r.held_tokens), 0) AS held_tokens,
        -- A worker of an earlier release did not count its requests.
        count(r.held_tokens) AS counted,
        (now() AT TIME ZONE 'UTC')::date AS today,
        date_trunc('minute', now()) AS this_minute
    FROM settled AS r
    CROSS JOIN LATERAL unnest(r.subjects) AS s (subject_id)
    GROUP BY s.subject_id
),

locked_accounts AS MATERIALIZED (
    SELECT a.id
    FROM billing_account AS a
    WHERE a.id = any(array(SELECT unnest(ARRAY[debit_id, credit_id]) FROM charged))
    ORDER BY a.id
    FOR NO KEY UPDATE
),

locked_meters AS MATERIALIZED (
    SELECT m.subject_id
    FROM billing_meter AS m
    WHERE
        m.subject_id = any(array(SELECT subject_id FROM used))
        AND (SELECT count(*) FROM locked_accounts) >= 0
    ORDER BY m.subject_id
    FOR NO KEY UPDATE
),

-- Counting takes every lock, in order, before the first account or meter is changed.
settled_accounts AS (
    UPDATE billing_account AS a
    SET
        pending_debits = a.pending_debits - c.held,
        posted_debits = a.posted_debits + c.debits,
        posted_credits = a.posted_credits + c.credits
    FROM (
        SELECT debit_id AS id, held, cost AS debits, 0 AS credits FROM charged
        UNION ALL
        SELECT credit_id AS id, 0 AS held, 0 AS debits, cost AS credits FROM charged
    ) AS c
    WHERE
        a.id = c.id AND (SELECT count(*) FROM locked_meters) >= 0
        AND a.id = any(array(SELECT id FROM locked_accounts))
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

-- A transaction that began before midnight may come after one that began later: the day of a meter
-- never goes back.
settled_meters AS (
    UPDATE billing_meter AS m
    SET
        day = greatest(m.day, e.today),
        cost_daily = CASE WHEN m.day >= e.today THEN m.cost_daily ELSE 0 END + e.cost,
        cost_weekly = CASE
            WHEN m.day >= date_trunc('week', e.today)::date THEN m.cost_weekly ELSE 0
        END + e.cost,
        cost_monthly = CASE
            WHEN m.day >= date_trunc('month', e.today)::date THEN m.cost_monthly ELSE 0
        END + e.cost,
        byok_daily = CASE WHEN m.day >= e.today THEN m.byok_daily ELSE 0 END + e.byok,
        byok_weekly = CASE
            WHEN m.day >= date_trunc('week', e.today)::date THEN m.byok_weekly ELSE 0
        END + e.byok,
        byok_monthly = CASE
            WHEN m.day >= date_trunc('month', e.today)::date THEN m.byok_monthly ELSE 0
        END + e.byok,
        cost = m.cost + e.cost,
        byok = m.byok + e.byok,
        held_cost = m.held_cost - e.hold,
        held_byok = m.held_byok - e.byok_hold,
        tokens = m.tokens + e.tokens,
        held_tokens = greatest(m.held_tokens - e.held_tokens, 0),
        running = greatest(m.running - e.counted, 0),
        requests_before = CASE
            WHEN m.minute >= e.this_minute THEN m.requests_before ELSE m.requests
        END,
        requests_before_day = CASE
            WHEN m.minute >= date_trunc('day', e.this_minute, 'UTC')
                THEN coalesce(m.requests_before_day, m.requests)
            ELSE m.requests
        END,
        tokens_before = CASE
            WHEN m.minute >= e.this_minute THEN m.tokens_before ELSE m.tokens
        END,
        minute = greatest(m.minute, e.this_minute)
    FROM used AS e
    WHERE
        m.subject_id = e.subject_id AND (SELECT count(*) FROM locked_meters) >= 0
        AND m.subject_id = any(array(SELECT subject_id FROM locked_meters))
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
