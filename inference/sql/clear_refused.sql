-- Removes the marks of providers that accept the operator's credential again.
--
-- Parameters: $1 text[], the slugs of the providers.
-- Returns: nothing.
--
-- Lock order: rows of catalog_credentialrefusal by provider, and locked ones are skipped: whoever
--             writes a mark at this moment knows better.
DELETE FROM catalog_credentialrefusal AS t
USING (
    SELECT r.provider_id
    FROM catalog_credentialrefusal AS r
    INNER JOIN catalog_provider AS p ON r.provider_id = p.id
    WHERE p.slug = any($1)
    ORDER BY r.provider_id
    FOR UPDATE OF r SKIP LOCKED
) AS gone
WHERE t.provider_id = gone.provider_id
