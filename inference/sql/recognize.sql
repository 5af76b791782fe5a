-- Finds API keys by their digests, for the decision whether the bodies of their requests are read.
--
-- Parameters: $1 text[], the digests of the presented keys.
-- Returns: one row for each key found; the columns are those of `KeyRow`.
-- Locks: none.
SELECT
    k.digest, k.id AS key_id, k.organization_id, k.is_management, k.disabled, k.expires_at,
    now() AS read_at
FROM accounts_apikey AS k
WHERE k.digest = any($1)
