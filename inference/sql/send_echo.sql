-- Sends a notification, by which a worker finds out whether it hears of changed versions.
--
-- Parameters: $1 text, the payload.
-- Returns: one row without a value.
-- Locks: none.
SELECT pg_notify('causeway_versions', $1)
