-- Finds the open transactions that keep old versions of this database's rows: those with a
-- transaction id or a snapshot. A session that is idle in a transaction without both keeps none. An
-- autovacuum has a snapshot and keeps none either, so only sessions of clients count.
--
-- Parameters: $1 double precision, the seconds for which a transaction must have been open.
-- Returns: one row for each transaction, the oldest first; the columns are those of
--          `OpenTransaction`. Transactions of other users are seen with the role pg_read_all_stats.
-- Locks: none.
SELECT
    pid, coalesce(application_name, '') AS application, coalesce(usename::text, '') AS usename,
    coalesce(state, '') AS state,
    extract(EPOCH FROM clock_timestamp() - xact_start)::double precision AS seconds
FROM pg_stat_activity
WHERE
    backend_type = 'client backend'
    AND datname = current_database()
    AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
    AND pid <> pg_backend_pid()
    AND clock_timestamp() - xact_start > $1 * interval '1 second'
ORDER BY xact_start
