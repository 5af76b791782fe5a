-- Deletes the health of endpoints that have not been called since a bucket.
--
-- Parameters: $1 bigint, the last bucket to delete.
-- Returns: nothing; the row count is the number of deleted buckets.
--
-- Lock order: rows of inference_endpointhealth in no fixed order, and locked ones are skipped: a
--             worker that writes a row at this moment keeps it.
DELETE FROM inference_endpointhealth AS t
USING (
    SELECT endpoint_id, slot
    FROM inference_endpointhealth
    WHERE bucket <= $1
    FOR UPDATE SKIP LOCKED
) AS stale
WHERE t.endpoint_id = stale.endpoint_id AND t.slot = stale.slot
