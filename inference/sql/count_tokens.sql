-- Adds to the sums of the prompts' tokens, as they were estimated and as providers have reported
-- them. An endpoint that is deleted meanwhile is left out.
--
-- Parameters: $1 text, a JSON array of `[endpoint, script, mark, kind, tokens]`.
-- Returns: nothing.
-- Lock order: the sums, by primary key.
INSERT INTO inference_tokensum AS c (endpoint_id, script, mark, kind, tokens)
SELECT p.id, e.item ->> 1, e.item ->> 2, e.item ->> 3, (e.item ->> 4)::bigint
FROM json_array_elements($1::json) AS e (item)
INNER JOIN catalog_modelendpoint AS p ON (e.item ->> 0)::uuid = p.id
ORDER BY 1, 2, 3, 4
ON CONFLICT (endpoint_id, script, mark, kind) DO UPDATE
    SET tokens = c.tokens + excluded.tokens
