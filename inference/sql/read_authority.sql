-- Reads the authority of API keys: each key with its organization's version, balance and guardrail
-- assignments, and the version of the catalogue.
--
-- Parameters: $1 text[], the digests of the keys.
-- Returns: one row for each key found; the columns after the digest and the catalogue's version are
--          those of `Authority`.
-- Locks: none.
--
-- A former secret has a row of its own; meter, rate limits and guardrail are those of its key.
SELECT
    k.digest, coalesce((SELECT c.version FROM catalog_catalogversion AS c), 0) AS catalog_version,
    coalesce(k.successor_id, k.id) AS key_id, k.organization_id, a.id AS credits_id,
    u.id AS usage_id,
    k.workspace_id, k.creator_id AS member_id, k.is_management, k.disabled, k.expires_at,
    o.routing_version,
    k.limit_nano, k.limit_reset, k.include_byok_in_limit,
    a.posted_credits - a.posted_debits - a.pending_debits AS available_nano,
    kg.guardrail_id AS key_guardrail_id, mg.guardrail_id AS member_guardrail_id,
    o.suspension_reason
FROM accounts_apikey AS k
INNER JOIN accounts_organization AS o ON k.organization_id = o.id
INNER JOIN billing_account AS a ON o.id = a.organization_id AND a.kind = 'credits'
INNER JOIN billing_account AS u ON o.id = u.organization_id AND u.kind = 'usage'
LEFT JOIN accounts_keyassignment AS kg ON coalesce(k.successor_id, k.id) = kg.api_key_id
LEFT JOIN accounts_memberassignment AS mg ON k.creator_id = mg.member_id
WHERE k.digest = any($1)
