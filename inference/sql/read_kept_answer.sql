-- Reads an encrypted answer whose size is known: that of a request with an idempotency key, or an
-- entry of the response cache.
--
-- Parameters: $1 bigint, the row; $2 uuid, its organization; $3 text, the generation that was
--             answered when the size was read.
-- Returns: the answer, if the row still has that of this generation.
-- Locks: none.
SELECT sealed
FROM inference_keptanswer
WHERE id = $1 AND organization_id = $2 AND generation_id = $3
