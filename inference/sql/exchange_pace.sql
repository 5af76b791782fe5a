-- Adds what a worker has sent to providers with the operator's credential, and returns the counts
-- of all workers.
--
-- Parameters: $1 json, an array of `PaceBucket`; $2 bigint, the bucket before the window.
-- Returns: the buckets of all workers within the window, the worker's own included.
--
-- The window has an end: what was counted while the database's clock was ahead does not count.
--
-- Lock order: rows of inference_providerpace by provider and bucket.
WITH batch AS (
    SELECT *
    FROM json_to_recordset($1::json) AS v (
        provider_id uuid, bucket bigint, requests integer, tokens bigint
    )
),

sent AS (
    INSERT INTO inference_providerpace AS t (provider_id, bucket, requests, tokens)
    SELECT provider_id, bucket, requests, tokens
    FROM batch
    ORDER BY provider_id, bucket
    ON CONFLICT (provider_id, bucket) DO UPDATE
        SET requests = t.requests + excluded.requests, tokens = t.tokens + excluded.tokens
    RETURNING t.*
)

SELECT provider_id, bucket, requests, tokens
FROM sent
WHERE bucket > $2 AND bucket <= $2 + 14
UNION ALL
SELECT t.provider_id, t.bucket, t.requests, t.tokens
FROM inference_providerpace AS t
WHERE
    t.bucket > $2 AND t.bucket <= $2 + 14
    AND NOT EXISTS (
        SELECT 1 FROM sent AS s WHERE s.provider_id = t.provider_id AND s.bucket = t.bucket
    )
