-- Gives API keys their digests by the first pepper.
--
-- Parameters: $1 json, an array of `RenewedDigest`.
-- Returns: nothing.
--
-- Lock order: API keys by id, shared. A key that is being deleted, revoked or rotated is left out;
--             its next request tries again. After a rotation no key is found by the hash that its
--             former secret had, but the row of that secret.
WITH batch AS (
    SELECT DISTINCT digest, key_digest, pepper
    FROM json_to_recordset($1::json) AS v (
        digest text, key_digest text, pepper text
    )
),

locked_keys AS MATERIALIZED (
    SELECT k.id, k.digest
    FROM accounts_apikey AS k
    WHERE k.digest = any(array(SELECT key_digest FROM batch))
    ORDER BY k.id
    FOR KEY SHARE SKIP LOCKED
)

INSERT INTO accounts_keydigest (digest, api_key_id, pepper)
SELECT b.digest, k.id, b.pepper
FROM batch AS b
INNER JOIN locked_keys AS k ON b.key_digest = k.digest
ORDER BY b.digest
ON CONFLICT (digest) DO UPDATE SET pepper = excluded.pepper
