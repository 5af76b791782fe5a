-- Reads what all workers have sent to providers with the operator's credential.
--
-- Parameters: $1 bigint, the bucket before the window.
-- Returns: the buckets of all workers within the window; the columns are those of `PaceBucket`.
-- Locks: none.
SELECT provider_id, bucket, requests, tokens
FROM inference_providerpace
WHERE bucket > $1 AND bucket <= $1 + 14
