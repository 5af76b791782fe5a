-- Adds to the counts of what guardrails have judged. A guardrail that is deleted meanwhile is left
-- out.
--
-- Parameters: $1 text, a JSON array of `[guardrail, slot in Unix seconds, reason, requests]`.
-- Returns: nothing.
-- Lock order: the counts, by primary key.
INSERT INTO inference_guardrailcount AS c (guardrail_id, slot, reason, requests)
SELECT g.id, to_timestamp((e.item ->> 1)::bigint), e.item ->> 2, (e.item ->> 3)::bigint
FROM json_array_elements($1::json) AS e (item)
INNER JOIN accounts_guardrail AS g ON (e.item ->> 0)::uuid = g.id
ORDER BY 1, 2, 3
ON CONFLICT (guardrail_id, slot, reason) DO UPDATE
    SET requests = c.requests + excluded.requests
