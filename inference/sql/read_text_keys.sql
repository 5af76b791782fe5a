-- Reads the keys that encrypt the stored texts of organizations.
--
-- Parameters: $1 uuid[], the organizations.
-- Returns: the columns of `KeyRow` of the texts, for the organizations that have a key.
-- Locks: none.
SELECT id, organization_id, sealed, epoch
FROM inference_textkey
WHERE organization_id = any($1::uuid[])
