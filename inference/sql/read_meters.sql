-- Reads meters, and the time of the database, by which days and minutes begin on every host.
--
-- Parameters: $1 uuid[], the subjects of the meters.
-- Returns: one row for each meter found; the columns after the time are those of `Reading`.
-- Locks: none.
SELECT
    now() AS read_at, m.subject_id, m.day, m.cost_daily, m.cost_weekly, m.cost_monthly, m.cost,
    m.byok_daily, m.byok_weekly, m.byok_monthly, m.byok, m.held_cost, m.held_byok, m.requests,
    m.minute, m.requests_before, m.requests_before_day, m.running, m.tokens, m.tokens_before,
    m.held_tokens
FROM billing_meter AS m
WHERE m.subject_id = any($1)
