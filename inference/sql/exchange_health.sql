-- Adds the outcomes and samples of a host to the health of endpoints that all hosts share, and
-- reads what has changed since the host read last.
--
-- A row is one bucket of five seconds in a ring of twelve slots; `endpoint_id` is the subject. A
-- row that is older than the stored bucket of its slot comes too late and is dropped, unless that
-- bucket was stored while the database's clock was ahead: by more than the minute of a late row.
--
-- A change is found by the transaction that wrote the row. `upto` is the oldest transaction that
-- is still running: whatever it and later ones write is read by the next statement, some of it
-- twice. Rows with failures or pauses come first, and then the newest ones: each statement returns
-- 2,000 at most, however many endpoints there are.
--
-- Parameters: $1 json, an array of `Bucket`; $2 bigint, the bucket before the window; $3 bigint,
--             the `upto` of the last statement, 0 at first.
-- Returns: the buckets within the window that have changed, those of $1 included, with `upto`.
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

SELECT
    endpoint_id, bucket, successes, failures, latencies, speeds, retry_at,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS upto
FROM sent
WHERE bucket > $2 AND bucket <= $2 + 13
UNION ALL
(
    SELECT
        t.endpoint_id, t.bucket, t.successes, t.failures, t.latencies, t.speeds, t.retry_at,
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS upto
    FROM inference_endpointhealth AS t
    WHERE
        t.changed >= $3
        AND t.bucket > $2 AND t.bucket <= $2 + 13
        AND NOT EXISTS (
            SELECT 1 FROM sent AS s WHERE s.endpoint_id = t.endpoint_id AND s.slot = t.slot
        )
    ORDER BY (t.failures > 0 OR t.retry_at > 0) DESC, t.changed DESC
    LIMIT 2000
)
