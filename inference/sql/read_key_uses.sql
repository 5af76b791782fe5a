-- Says what has become of uses of idempotency keys that other requests wait for.
--
-- A use that has not ended although its generation has is about to keep its answer, unless its
-- worker died: five seconds are enough for that.
--
-- Parameters: $1 text[], the ids of their generations; $2 double precision, the seconds within
--             which a request is admitted.
-- Returns: the ids of those generations that still run. All others are to be asked for again.
-- Locks: none.
SELECT u.generation_id
FROM inference_idempotentrequest AS u
LEFT JOIN inference_generation AS g ON u.generation_id = g.id
WHERE
    u.generation_id = any($1::text[])
    AND u.ended_at IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM inference_keptanswer AS a
        WHERE a.generation_id = u.generation_id AND a.cache_key IS NULL
    )
    AND (
        g.id IS NULL AND u.claimed_at >= now() - make_interval(secs => $2)
        OR g.status = 'pending'
        OR g.error_type IS DISTINCT FROM 'abandoned'
        AND g.created_at + make_interval(secs => 5 + coalesce(g.duration_ms, 0) / 1000.0) >= now()
    )
