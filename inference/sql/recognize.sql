-- Finds API keys by their digests, for the decision whether the bodies of their requests are read.
--
-- Parameters: $1 text[], the digests of the presented keys by all peppers.
-- Returns: one row for each digest found; the columns are those of `KeyRow`.
-- Locks: none.
SELECT
    d.digest AS found_by, d.pepper, k.digest, coalesce(k.successor_id, k.id) AS key_id,
    k.organization_id, k.is_management, k.disabled, k.expires_at, now() AS read_at,
    o.suspension_reason
FROM accounts_keydigest AS d
INNER JOIN accounts_apikey AS k ON d.api_key_id = k.id
INNER JOIN accounts_organization AS o ON k.organization_id = o.id
WHERE d.digest = any($1)
