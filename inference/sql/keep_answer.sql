-- Keeps an encrypted answer, in place of the oldest ones of its organization if they are too many.
--
-- Entries of the response cache make room before answers that belong to an idempotency key. No
-- other organization loses anything. Nothing is kept of a request whose texts were deleted since it
-- was admitted.
--
-- Parameters: $1 uuid, the organization; $2 text, the generation that was answered; $3 bytea, the
--             cache key, or null; $4 uuid, the deployment that answered; $5 bytea, the encrypted
--             answer; $6 int, what it counts; $7 double precision, its lifetime in seconds; $8
--             bigint, the most that the answers of an organization may count.
-- Returns: nothing.
--
-- Lock order: rows of the organization by id; those that another statement has locked stay.
WITH crowded AS MATERIALIZED (
    SELECT a.id
    FROM inference_keptanswer AS a
    WHERE
        a.id = any(
            array(
                SELECT o.id
                FROM (
                    SELECT
                        id,
                        sum(size) OVER (ORDER BY (cache_key IS NOT NULL), id DESC) AS counted
                    FROM inference_keptanswer
                    WHERE organization_id = $1
                ) AS o
                WHERE o.counted + $6 > $8
            )
        )
    ORDER BY a.id
    FOR UPDATE SKIP LOCKED
),

removed AS (
    DELETE FROM inference_keptanswer WHERE id = any(array(SELECT id FROM crowded))
)

INSERT INTO inference_keptanswer (
    organization_id, generation_id, cache_key, endpoint_id, sealed, size, created_at, expires_at
)
SELECT $1, $2::text, $3, $4, $5, $6, now(), now() + make_interval(secs => $7)
WHERE
    NOT EXISTS (
        SELECT 1
        FROM inference_textdeletion AS d
        INNER JOIN inference_generation AS g ON d.organization_id = g.organization_id
        WHERE
            g.id = $2
            AND d.organization_id = $1
            AND d.deleted_at >= g.created_at
            AND (d.workspace_id IS NULL OR d.workspace_id = g.workspace_id)
            AND (d.api_key_id IS NULL OR d.api_key_id = g.api_key_id)
            AND (d.generation_id IS NULL OR d.generation_id = g.id)
    )
ON CONFLICT (organization_id, cache_key) WHERE cache_key IS NOT NULL DO UPDATE
    SET
        generation_id = excluded.generation_id,
        endpoint_id = excluded.endpoint_id,
        sealed = excluded.sealed,
        size = excluded.size,
        created_at = excluded.created_at,
        expires_at = excluded.expires_at
