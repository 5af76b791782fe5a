-- Moves a pending generation, and the price that it will pay, to its next candidate before the
-- candidate is called. The hold does not change: it covers every candidate.
--
-- Parameters: $1 text, the generation; $2 uuid, its organization;
--             $3 timestamptz, when its API key expires;
--             $4 uuid, $5 uuid, the private or the catalogue endpoint of the candidate;
--             $6 text, the provider's name; $7 bigint, the price version; $8 bool, whether an own
--             credential pays; $9 bigint, the attestation; $10 text, the model;
--             $11 bigint, $12 bigint, the organization's and the catalogue's version by which the
--             candidates were found.
-- Returns: the id of the generation; no row if the key has expired, if one of the versions has
--          moved, or if the generation has ended.
--
-- Lock order: the organization and the catalogue's version, both shared; then the generation. See
--             admit.sql for the reason.
WITH request AS (
    SELECT
        $2::uuid AS organization_id, $3::timestamptz AS key_expires_at,
        $4::uuid AS private_endpoint_id, $5::uuid AS model_endpoint_id, $6::text AS provider_name,
        $7::bigint AS price_id, $8::bool AS is_byok, $9::bigint AS attestation_id,
        $10::text AS model, $11::bigint AS routing_version, $12::bigint AS catalog_version
),

locked_organizations AS MATERIALIZED (
    SELECT o.id, o.routing_version
    FROM accounts_organization AS o
    WHERE o.id = any(array(SELECT organization_id FROM request))
    ORDER BY o.id
    FOR SHARE
),

locked_catalog AS MATERIALIZED (
    SELECT causeway_hold_catalog() AS version
    WHERE (SELECT count(*) FROM locked_organizations) >= 0
)

UPDATE inference_generation AS g
SET
    private_endpoint_id = r.private_endpoint_id,
    model_endpoint_id = r.model_endpoint_id,
    provider_name = r.provider_name,
    price_id = r.price_id,
    is_byok = r.is_byok,
    attestation_id = r.attestation_id,
    model = r.model
FROM request AS r
INNER JOIN locked_organizations AS o
    ON r.organization_id = o.id AND r.routing_version = o.routing_version
INNER JOIN locked_catalog AS c ON r.catalog_version = c.version
WHERE
    g.id = $1::text AND g.status = 'pending'
    AND (r.key_expires_at IS NULL OR r.key_expires_at > now())
RETURNING g.id
