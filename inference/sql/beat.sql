-- Records that a heartbeat has reached the database, and since when heartbeats do without a gap.
--
-- An outage of the database, a promoted standby and a step of the database's clock are gaps. The
-- sweeper believes the silence of a worker only after heartbeats have arrived for a whole lease.
--
-- Parameters: $1 double precision, the seconds without a heartbeat that make a gap.
-- Returns: one row with the database's time, and a text that names the cluster, the database and
--          the start of the server. It changes when the database was restored.
--
-- Lock order: the row of inference_uptime. A locked row is skipped: it is the same information.
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
)

SELECT
    now() AS read_at,
    concat_ws(
        '/',
        (SELECT c.system_identifier FROM pg_control_system() AS c),
        (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()),
        extract(EPOCH FROM pg_postmaster_start_time())
    ) AS server
