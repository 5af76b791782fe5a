-- Reads the answer to a request with an idempotency key.
--
-- Parameters: $1 uuid, its organization; $2 text, its generation.
-- Returns: the encrypted answer, if it is kept.
-- Locks: none.
SELECT sealed
FROM inference_keptanswer
WHERE generation_id = $2 AND organization_id = $1 AND cache_key IS NULL
