-- Records that a heartbeat has reached the database, and since when heartbeats do without a gap.
--
-- An outage of the database, a promoted standby and a step of the database's clock are gaps. The
-- sweeper believes the silence of a worker only after heartbeats have arrived for a whole lease.
--
-- Each worker has a row whose number only grows. One that is lower than the worker remembers, or
-- that is gone, shows that the database has lost what it had committed.
--
-- Parameters: $1 double precision, the seconds without a heartbeat that make a gap;
--             $2 text, the worker, or null for a process that remembers nothing;
--             $3 bigint, the number of this heartbeat, or null to leave the worker's row as it is;
--             $4 bigint, the highest number that the worker knows to be stored, or 0: where the
--             row is older, it stays as it is, and where it is newer: this statement is late;
--             $5 uuid, the loss that the worker has noticed, or null.
-- Returns: one row with the database's time; a text that names the cluster, the database and the
--          start of the server, and changes when the database was restored; the server's timeline;
--          the number and the time of the worker's row before; the number that was written, null
--          if it was not; whether any loss is not accepted; and whether the worker's is, null if
--          it is not recorded.
--
-- Lock order: the row of inference_uptime, then that of the worker. A locked row is skipped: it is
--             the same information, or an earlier try of this statement that waits for a standby.
WITH made AS (
    INSERT INTO inference_uptime (id, since, beat_at) VALUES (1, now(), now())
    ON CONFLICT DO NOTHING
),

locked AS (
    SELECT id
    FROM inference_uptime
    WHERE id = 1
    FOR NO KEY UPDATE SKIP LOCKED
),

stamped AS (
    UPDATE inference_uptime AS u
    SET
        since = CASE
            WHEN abs(extract(EPOCH FROM now() - u.beat_at)) <= $1 THEN u.since ELSE now()
        END,
        beat_at = now()
    FROM locked AS l
    WHERE u.id = l.id
),

locked_worker AS (
    SELECT worker
    FROM inference_workerbeat
    WHERE worker = $2::text AND number BETWEEN $4::bigint AND $3::bigint
    FOR NO KEY UPDATE SKIP LOCKED
),

grown AS (
    UPDATE inference_workerbeat AS b
    SET number = $3::bigint, beat_at = now()
    FROM locked_worker AS l
    WHERE b.worker = l.worker
    RETURNING b.number
),

begun AS (
    INSERT INTO inference_workerbeat (worker, number, beat_at)
    SELECT $2::text, $3::bigint, now()
    WHERE $2::text IS NOT NULL AND $3::bigint IS NOT NULL AND $4::bigint = 0
    ON CONFLICT DO NOTHING
    RETURNING number
)

SELECT
    now() AS read_at,
    concat_ws(
        '/',
        (SELECT c.system_identifier FROM pg_control_system() AS c),
        (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()),
        extract(EPOCH FROM pg_postmaster_start_time())
    ) AS server,
    -- The control file has the timeline of a promotion only after the next checkpoint.
    ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::bigint AS timeline,
    (SELECT b.number FROM inference_workerbeat AS b WHERE b.worker = $2::text) AS number,
    (SELECT b.beat_at FROM inference_workerbeat AS b WHERE b.worker = $2::text) AS beat_at,
    coalesce((SELECT g.number FROM grown AS g), (SELECT n.number FROM begun AS n)) AS written,
    exists(SELECT 1 FROM inference_historyloss AS h WHERE h.accepted_at IS NULL) AS is_open,
    (
        SELECT h.accepted_at IS NOT NULL FROM inference_historyloss AS h WHERE h.id = $5::uuid
    ) AS is_accepted
