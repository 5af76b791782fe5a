-- Gives API keys their digests by the first pepper.
--
-- Parameters: $1 json, an array of `RenewedDigest`.
-- Returns: nothing.
--
-- Lock order: API keys by id, shared. A key that is being deleted or revoked is left out; its next
--             request tries again.
WITH batch AS (
    SELECT DISTINCT digest, api_key_id, pepper
    FROM json_to_recordset($1::json) AS v (
        digest text, api_key_id uuid, pepper text
    )
),

locked_keys AS MATERIALIZED (
    SELECT k.id
    FROM accounts_apikey AS k
    WHERE k.id = any(array(SELECT api_key_id FROM batch))
    ORDER BY k.id
    FOR KEY SHARE SKIP LOCKED
)

INSERT INTO accounts_keydigest (digest, api_key_id, pepper)
SELECT b.digest, b.api_key_id, b.pepper
FROM batch AS b
INNER JOIN locked_keys AS k ON b.api_key_id = k.id
ORDER BY b.digest
ON CONFLICT (digest) DO UPDATE SET pepper = excluded.pepper
