-- Forgets a use of an idempotency key whose request was refused, or failed without a charge.
--
-- Parameters: $1 text, the id that its generation has, or would have had.
-- Returns: nothing.
--
-- Lock order: one row of the table.
DELETE FROM inference_idempotentrequest WHERE generation_id = $1
