-- Finds generations that refer to rows that do not exist, and journals without their generation:
-- PostgreSQL does not check these references when a row is stored.
--
-- Returns: a sentence for each missing row.
-- Locks: none.
SELECT format('generation %s: its %s %s does not exist', g.id, m.name, m.id)
FROM inference_generation AS g
LEFT JOIN accounts_organization AS o ON g.organization_id = o.id
LEFT JOIN accounts_workspace AS w ON g.workspace_id = w.id
LEFT JOIN accounts_apikey AS k ON g.api_key_id = k.id
LEFT JOIN accounts_member AS u ON g.member_id = u.id
LEFT JOIN endpoints_privateendpoint AS p ON g.private_endpoint_id = p.id
LEFT JOIN catalog_modelendpoint AS e ON g.model_endpoint_id = e.id
LEFT JOIN endpoints_attestation AS a ON g.attestation_id = a.id
LEFT JOIN catalog_priceversion AS v ON g.price_id = v.id
CROSS JOIN
    LATERAL (
        VALUES
        ('organization', g.organization_id::text, o.id::text),
        ('workspace', g.workspace_id::text, w.id::text),
        ('API key', g.api_key_id::text, k.id::text),
        ('member', g.member_id::text, u.id::text),
        ('private endpoint', g.private_endpoint_id::text, p.id::text),
        ('catalogue endpoint', g.model_endpoint_id::text, e.id::text),
        ('attestation', g.attestation_id::text, a.id::text),
        ('price', g.price_id::text, v.id::text)
    ) AS m (name, id, found)
WHERE
    -- Almost no row passes, so the names are made for almost none.
    num_nonnulls(o.id, w.id, k.id, u.id, p.id, e.id, a.id, v.id)
    < num_nonnulls(
        g.organization_id, g.workspace_id, g.api_key_id, g.member_id, g.private_endpoint_id,
        g.model_endpoint_id, g.attestation_id, g.price_id
    )
    AND m.id IS NOT NULL AND m.found IS NULL
UNION ALL
SELECT format('journal %s: its generation does not exist', j.generation_id)
FROM inference_journal AS j
LEFT JOIN inference_generation AS g ON j.generation_id = g.id
WHERE g.id IS NULL
