-- Reads the health of endpoints that all workers share, without sending anything.
--
-- Parameters: $1 bigint, the bucket before the window.
-- Returns: the buckets of all workers within the window.
-- Locks: none.
SELECT endpoint_id, bucket, successes, failures, latencies, speeds, retry_at
FROM inference_endpointhealth
WHERE bucket > $1 AND bucket <= $1 + 13
