-- Ends a batch of generations: stores their outcomes, ends their holds, moves their costs between
-- accounts and counts them on the meters.
--
-- A generation ends once. A row whose generation has ended already, for instance because the
-- sweeper took its worker for dead, changes nothing.
--
-- The hold pays the cost as far as it can. An excess is paid from the available credits, and the
-- rest of it is written off, visible in the ledger. Nothing is clamped and nothing overdrawn.
--
-- Parameters: $1 json, an array of `SettlementRow`, at most one row for each generation.
-- Returns: the ids of the generations that ended now.
--
-- Lock order: generations (those of the batch, in no fixed order: a generation has one worker, and
--             the sweeper skips locked rows), accounts by id, meters by subject; then the transfers
--             and journals, which belong to the locked generations.
WITH batch AS (
    SELECT *
    FROM json_to_recordset($1::json) AS v (
        id text, status text, prompt_tokens bigint, completion_tokens bigint,
        cached_tokens bigint, cache_write_tokens bigint, reasoning_tokens bigint,
        is_estimated bool, cost_nano bigint, upstream_cost_nano bigint, finish_reason text,
        native_finish_reason text, upstream_id text, upstream_model text, error_type text,
        attempts jsonb, latency_ms int, duration_ms int
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
        cost_nano = b.cost_nano,
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
        array_remove(ARRAY[g.api_key_id, g.workspace_id, g.member_id], NULL) AS subjects
),

ended AS MATERIALIZED (
    SELECT
        id AS reference, organization_id, subjects, hold_nano, byok_hold_nano, cost_nano,
        byok_cost_nano
    FROM settled
),

locked_accounts AS MATERIALIZED (
    SELECT
        a.id, a.organization_id, a.kind,
        a.posted_credits - a.posted_debits - a.pending_debits AS available
    FROM billing_account AS a
    WHERE
        a.kind IN ('credits', 'usage', 'write_off')
        AND a.organization_id = any(array(
            SELECT organization_id FROM ended WHERE hold_nano > 0 OR cost_nano > 0
        ))
    ORDER BY a.id
    FOR NO KEY UPDATE
),

locked_meters AS MATERIALIZED (
    SELECT m.subject_id
    FROM billing_meter AS m
    WHERE
        m.subject_id = any(array(SELECT unnest(subjects) FROM ended))
        AND (SELECT count(*) FROM locked_accounts) >= 0
    ORDER BY m.subject_id
    FOR NO KEY UPDATE
),

paid AS MATERIALIZED (
    SELECT
        reference, organization_id, hold_nano, least(cost_nano, hold_nano) AS posted,
        greatest(cost_nano - hold_nano, 0) AS excess,
        sum(greatest(cost_nano - hold_nano, 0))
            OVER (PARTITION BY organization_id ORDER BY reference)
            AS excess_so_far,
        sum(greatest(hold_nano - cost_nano, 0)) OVER (PARTITION BY organization_id) AS freed
    FROM ended
    WHERE
        (hold_nano > 0 OR cost_nano > 0)
        -- Counting takes every lock, in order, before the first row is changed.
        AND (SELECT count(*) FROM locked_meters) >= 0
),

charged AS MATERIALIZED (
    SELECT
        p.*,
        least(
            p.excess, greatest(a.available + p.freed - p.excess_so_far + p.excess, 0)
        ) AS surcharge
    FROM paid AS p
    INNER JOIN locked_accounts AS a ON p.organization_id = a.organization_id
    WHERE a.kind = 'credits'
),

ended_holds AS (
    UPDATE billing_transfer AS t
    SET
        status = CASE WHEN c.posted > 0 THEN 'posted' ELSE 'voided' END,
        posted_nano = nullif(c.posted, 0),
        ended_at = now()
    FROM charged AS c
    WHERE
        t.reference = c.reference AND t.kind = 'usage' AND t.status = 'pending'
        AND t.reference = any(array(SELECT reference FROM charged WHERE hold_nano > 0))
),

surcharges AS (
    INSERT INTO billing_transfer (
        organization_id, kind, debit_id, credit_id, amount_nano, posted_nano, status, reference,
        ended_at
    )
    SELECT c.organization_id, v.kind, d.id, u.id, v.amount, v.amount, 'posted', c.reference, now()
    FROM charged AS c
    CROSS JOIN
        LATERAL (
            VALUES
            ('excess', 'credits', c.surcharge),
            ('write_off', 'write_off', c.excess - c.surcharge)
        ) AS v (kind, source, amount)
    INNER JOIN locked_accounts AS d ON c.organization_id = d.organization_id AND v.source = d.kind
    INNER JOIN locked_accounts AS u ON c.organization_id = u.organization_id AND u.kind = 'usage'
    WHERE v.amount > 0
),

settled_accounts AS (
    UPDATE billing_account AS a
    SET
        pending_debits = a.pending_debits - CASE a.kind WHEN 'credits' THEN c.held ELSE 0 END,
        posted_debits = a.posted_debits + CASE a.kind
            WHEN 'credits' THEN c.posted + c.surcharge
            WHEN 'write_off' THEN c.excess - c.surcharge
            ELSE 0
        END,
        posted_credits = a.posted_credits
        + CASE a.kind WHEN 'usage' THEN c.posted + c.excess ELSE 0 END
    FROM (
        SELECT
            organization_id, sum(hold_nano) AS held, sum(posted) AS posted,
            sum(excess) AS excess, sum(surcharge) AS surcharge
        FROM charged
        GROUP BY organization_id
    ) AS c
    WHERE
        a.organization_id = c.organization_id
        AND a.id = any(array(SELECT id FROM locked_accounts))
        AND (a.kind IN ('credits', 'usage') OR (a.kind = 'write_off' AND c.excess > c.surcharge))
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
        held_byok = m.held_byok - e.byok_hold
    FROM (
        SELECT
            s.subject_id, sum(r.cost_nano) AS cost, sum(r.byok_cost_nano) AS byok,
            sum(r.hold_nano) AS hold, sum(r.byok_hold_nano) AS byok_hold,
            (now() AT TIME ZONE 'UTC')::date AS today
        FROM ended AS r
        CROSS JOIN LATERAL unnest(r.subjects) AS s (subject_id)
        WHERE (SELECT count(*) FROM locked_meters) >= 0
        GROUP BY s.subject_id
    ) AS e
    WHERE
        m.subject_id = e.subject_id
        AND m.subject_id = any(array(SELECT subject_id FROM locked_meters))
),

deleted_journals AS (
    DELETE FROM inference_journal
    WHERE generation_id = any(array(SELECT id FROM settled))
)

SELECT id FROM settled
