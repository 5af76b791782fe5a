-- Stores keys for the texts of organizations that have none.
--
-- Parameters: $1 json, an array of `NewKey`.
-- Returns: nothing.
--
-- Lock order: keys by organization.
WITH batch AS (
    SELECT *
    FROM json_to_recordset($1::json) AS v (
        organization_id uuid, sealed text
    )
)

INSERT INTO inference_textkey (organization_id, sealed, epoch, created_at)
SELECT organization_id, sealed, 0, now()
FROM batch
ORDER BY organization_id
ON CONFLICT (organization_id) DO NOTHING
