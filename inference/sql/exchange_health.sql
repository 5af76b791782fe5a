-- Adds a worker's outcomes and samples to the health of endpoints that all workers share, and reads
-- the shared health.
--
-- A row is one bucket of five seconds in a ring of twelve slots; `endpoint_id` is the subject. A
-- row that is older than the stored bucket of its slot comes too late and is dropped, unless that
-- bucket was stored while the database's clock was ahead: by more than the minute of a late row.
--
-- Parameters: $1 json, an array of `Bucket`; $2 bigint, the bucket before the window.
-- Returns: the buckets of all workers within the window, the worker's own included.
--
-- Lock order: rows of inference_endpointhealth by endpoint and slot.
WITH batch AS (
    SELECT *
    FROM json_to_recordset($1::json) AS v (
        endpoint_id uuid, bucket bigint, successes integer, failures integer,
        latencies integer[], speeds double precision[], retry_at double precision
    )
),

sent AS (
    INSERT INTO inference_endpointhealth AS t (
        endpoint_id, slot, bucket, successes, failures, latencies, speeds, retry_at
    )
    SELECT
        endpoint_id, bucket % 12, bucket, successes, failures, latencies, speeds, retry_at
    FROM batch
    ORDER BY endpoint_id, bucket % 12
    ON CONFLICT (endpoint_id, slot) DO UPDATE
        SET
            bucket = excluded.bucket,
            successes = excluded.successes
            + CASE WHEN t.bucket = excluded.bucket THEN t.successes ELSE 0 END,
            failures = excluded.failures
            + CASE WHEN t.bucket = excluded.bucket THEN t.failures ELSE 0 END,
            latencies = CASE
                WHEN t.bucket = excluded.bucket THEN (t.latencies || excluded.latencies)[1:32]
                ELSE excluded.latencies
            END,
            speeds = CASE
                WHEN t.bucket = excluded.bucket THEN (t.speeds || excluded.speeds)[1:32]
                ELSE excluded.speeds
            END,
            retry_at = greatest(
                excluded.retry_at, CASE WHEN t.bucket = excluded.bucket THEN t.retry_at ELSE 0 END
            )
        WHERE t.bucket <= excluded.bucket OR t.bucket > excluded.bucket + 12
    RETURNING t.*
)

SELECT endpoint_id, bucket, successes, failures, latencies, speeds, retry_at
FROM sent
WHERE bucket > $2 AND bucket <= $2 + 13
UNION ALL
SELECT t.endpoint_id, t.bucket, t.successes, t.failures, t.latencies, t.speeds, t.retry_at
FROM inference_endpointhealth AS t
WHERE
    t.bucket > $2 AND t.bucket <= $2 + 13
    AND NOT EXISTS (
        SELECT 1 FROM sent AS s WHERE s.endpoint_id = t.endpoint_id AND s.slot = t.slot
    )
