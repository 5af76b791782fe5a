-- Begins the use of an idempotency key, or says what has become of its earlier use.
--
-- An earlier use is over when its request failed or was cancelled and nothing was charged, when
-- nothing was admitted for it within its lease, or when it has expired and does not run any more.
-- Nothing else ends it: so no two requests with one key are sent to an upstream. A use that has not
-- ended although its generation has is about to keep its answer, unless its worker died: five
-- seconds are enough for that.
--
-- Parameters: $1 uuid, the API key; $2 text, the route; $3 text, the idempotency key; $4 bytea, the
--             fingerprint of the request; $5 text, the id that its generation will have; $6 double
--             precision, the seconds for which a use that nobody ends is remembered; $7 double
--             precision, the seconds within which a request is admitted.
-- Returns: the columns of `KeyUse`. No row if another statement began a use at the same moment.
--
-- Lock order: one row of the table.
WITH present AS MATERIALIZED (
    SELECT
        u.id, u.generation_id, u.is_kept, a.id AS answer_id, a.size,
        CASE
            WHEN g.id IS NULL AND u.claimed_at < now() - make_interval(secs => $7) THEN 'free'
            WHEN
                g.status IN ('failed', 'cancelled') AND g.cost_nano = 0
                AND g.prompt_tokens IS NULL AND g.completion_tokens IS NULL
                THEN 'free'
            WHEN g.status <> 'pending' AND u.expires_at <= now() THEN 'free'
            WHEN u.fingerprint <> $4 THEN 'different'
            WHEN a.id IS NOT NULL THEN 'answered'
            WHEN u.ended_at IS NOT NULL THEN 'over'
            WHEN g.id IS NULL OR g.status = 'pending' THEN 'running'
            WHEN
                g.error_type = 'abandoned'
                OR g.created_at
                + make_interval(secs => 5 + coalesce(g.duration_ms, 0) / 1000.0) < now()
                THEN 'over'
            ELSE 'running'
        END AS state
    FROM inference_idempotentrequest AS u
    LEFT JOIN inference_generation AS g ON u.generation_id = g.id
    LEFT JOIN inference_keptanswer AS a
        ON u.generation_id = a.generation_id AND a.cache_key IS NULL
    WHERE u.api_key_id = $1 AND u.route = $2 AND u.key = $3
    FOR UPDATE OF u
),

workspace AS (
    SELECT w.is_answer_storage_enabled AS is_kept
    FROM accounts_apikey AS k
    INNER JOIN accounts_workspace AS w ON k.workspace_id = w.id
    WHERE k.id = $1
),

renewed AS (
    UPDATE inference_idempotentrequest AS u
    SET
        fingerprint = $4,
        generation_id = $5,
        is_kept = w.is_kept,
        claimed_at = now(),
        ended_at = NULL,
        expires_at = now() + make_interval(secs => $6)
    FROM present AS p
    CROSS JOIN workspace AS w
    WHERE u.id = p.id AND p.state = 'free'
    RETURNING u.generation_id, u.is_kept
),

begun AS (
    INSERT INTO inference_idempotentrequest (
        api_key_id, route, key, fingerprint, generation_id, is_kept, claimed_at, expires_at
    )
    SELECT $1, $2, $3, $4, $5, is_kept, now(), now() + make_interval(secs => $6)
    FROM workspace
    WHERE NOT EXISTS (SELECT 1 FROM present)
    ON CONFLICT (api_key_id, route, key) DO NOTHING
    RETURNING generation_id, is_kept
)

SELECT generation_id, is_kept, 'begun' AS state, NULL::bigint AS answer_id, 0 AS size
FROM begun
UNION ALL
SELECT generation_id, is_kept, 'begun' AS state, NULL AS answer_id, 0 AS size FROM renewed
UNION ALL
SELECT generation_id, is_kept, state, answer_id, coalesce(size, 0) AS size
FROM present
WHERE state <> 'free'
