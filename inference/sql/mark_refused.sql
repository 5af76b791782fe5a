-- Marks the providers that refuse the operator's credential.
--
-- Parameters: $1 json, an array of `RefusedCredential`.
-- Returns: nothing. A credential that was replaced meanwhile is not marked.
--
-- Lock order: rows of catalog_credentialrefusal by provider.
INSERT INTO catalog_credentialrefusal AS t (provider_id, reason, since, seen_at)
SELECT p.id, v.reason, now(), now()
FROM json_to_recordset($1::json) AS v (provider text, label text, reason text)
INNER JOIN catalog_provider AS p ON v.provider = p.slug AND v.label = p.credential_label
ORDER BY p.id
ON CONFLICT (provider_id) DO UPDATE
    SET reason = excluded.reason, seen_at = excluded.seen_at
