-- Waits until everything that this server has committed is on the synchronous standby.
--
-- A commit waits only for what its own transaction wrote; a message is the least that one writes.
--
-- Returns: one row with the position of the message.
-- Locks: none.
SELECT pg_logical_emit_message(TRUE, 'causeway', '') AS written_at
