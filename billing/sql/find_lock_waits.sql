-- Measures the sessions that wait for a lock at this moment.
--
-- Returns: one row with the number of sessions, and the seconds for which the oldest has waited.
--          Sessions of other users are seen with the role pg_read_all_stats.
-- Locks: none.
SELECT
    count(*) AS waiting,
    coalesce(
        extract(EPOCH FROM clock_timestamp() - min(query_start))::double precision, 0
    ) AS seconds
FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND datname = current_database()
