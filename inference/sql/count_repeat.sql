-- Counts a repeated request for the rate limits, in all their meters or in none.
--
-- Parameters: $1 uuid[], the subjects of the meters; $2 bigint[], the most requests a minute, and
--             $3 bigint[], those a day, at the same positions.
-- Returns: for each meter, whether the request was counted, the time, and the columns of
--          `MeterReading`.
-- Lock order: meters by subject.
SELECT
    c.is_counted, now() AS read_at, (c.meter).subject_id, (c.meter).day, (c.meter).cost_daily,
    (c.meter).cost_weekly, (c.meter).cost_monthly, (c.meter).cost, (c.meter).byok_daily,
    (c.meter).byok_weekly, (c.meter).byok_monthly, (c.meter).byok, (c.meter).held_cost,
    (c.meter).held_byok, (c.meter).requests, (c.meter).minute, (c.meter).requests_before,
    (c.meter).requests_before_day, (c.meter).running, (c.meter).tokens, (c.meter).tokens_before,
    (c.meter).held_tokens
FROM causeway_count_repeat_1($1, $2, $3) AS c
