-- Finds the presets that requests name, each with the version that applies now.
--
-- Parameters: $1 uuid[], the keys of the requests; $2 text[], the slugs, at the same positions.
-- Returns: one row for each preset found: the key, the slug, and the columns of `Preset`.
-- Locks: none. A preset belongs to the workspace of the key, so no key finds that of another
--        tenant.
SELECT w.key_id, w.slug, p.id, p.status, v.config, v.system_prompt
FROM unnest($1::uuid[], $2::text[]) AS w (key_id, slug)
INNER JOIN accounts_apikey AS k ON w.key_id = k.id
INNER JOIN accounts_preset AS p ON k.workspace_id = p.workspace_id AND w.slug = p.slug
LEFT JOIN accounts_presetversion AS v ON p.designated_version_id = v.id
