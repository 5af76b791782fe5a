-- Reads the providers that refuse the operator's credential.
--
-- Returns: their slugs.
-- Locks: none.
SELECT p.slug
FROM catalog_credentialrefusal AS r
INNER JOIN catalog_provider AS p ON r.provider_id = p.id
