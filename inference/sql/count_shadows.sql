-- Adds to the counts of what shadows of guardrails have judged. A shadow that has ended meanwhile
-- is left out.
--
-- Parameters: $1 text, a JSON array of `[shadow, key, hour in Unix seconds, reason, requests]`.
-- Returns: nothing.
-- Lock order: the counts, by primary key.
INSERT INTO inference_shadowcount AS c (shadow_id, api_key_id, hour, reason, requests)
SELECT
    s.id, (e.item ->> 1)::uuid, to_timestamp((e.item ->> 2)::bigint), e.item ->> 3,
    (e.item ->> 4)::bigint
FROM json_array_elements($1::json) AS e (item)
INNER JOIN accounts_guardrailshadow AS s ON (e.item ->> 0)::uuid = s.id
ORDER BY 1, 2, 3, 4
ON CONFLICT (shadow_id, api_key_id, hour, reason) DO UPDATE
    SET requests = c.requests + excluded.requests
