-- Writes the progress of a worker's running generations to their journals.
--
-- Parameters: $1 json, an array of `Progress`.
-- Returns: nothing.
--
-- Lock order: journals in no fixed order, and locked ones are skipped. A journal is locked by the
--             settlement that deletes it: waiting for it, while holding others, would deadlock.
WITH batch AS (
    SELECT *
    FROM json_to_recordset($1::json) AS v (
        generation_id text, prompt_tokens bigint, completion_tokens bigint, units jsonb
    )
),

locked_journals AS MATERIALIZED (
    SELECT j.generation_id
    FROM inference_journal AS j
    WHERE j.generation_id = any(array(SELECT generation_id FROM batch))
    FOR UPDATE SKIP LOCKED
)

UPDATE inference_journal AS j
SET
    prompt_tokens = b.prompt_tokens,
    completion_tokens = b.completion_tokens,
    units = coalesce(j.units || b.units, b.units, j.units),
    beat_at = now()
FROM batch AS b
INNER JOIN locked_journals AS l ON b.generation_id = l.generation_id
WHERE
    j.generation_id = b.generation_id
    AND j.generation_id = any(array(SELECT generation_id FROM locked_journals))
