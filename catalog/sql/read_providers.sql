-- Reads providers for routing.
--
-- Parameters: $1 uuid[], ids; those of other tables are ignored.
-- Returns: one row for each provider found; the columns are the parameters of `make_provider`.
-- Locks: none.
SELECT
    p.id, p.slug, p.name, p.dialect, p.base_url, p.trains_on_prompts, p.is_listed,
    p.sealed_credential, p.is_keyless, p.allowed_networks, p.ca_certificates, p.requests_per_minute,
    p.tokens_per_minute
FROM catalog_provider AS p
WHERE p.id = any($1)
