-- Ends a use of an idempotency key, which is remembered from now on for its whole lifetime.
--
-- Parameters: $1 text, the id of its generation; $2 double precision, the lifetime in seconds.
-- Returns: nothing.
--
-- Lock order: one row of the table.
UPDATE inference_idempotentrequest
SET ended_at = now(), expires_at = now() + make_interval(secs => $2)
WHERE generation_id = $1
