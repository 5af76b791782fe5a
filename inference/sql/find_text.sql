-- Finds the stored text of a generation, unless its time is over or its deletion was asked for.
--
-- Parameters: $1 uuid, the organization; $2 text, the generation; $3 int, the most days for which
--             any text is kept.
-- Returns: the ciphertext, whether the text was shortened, and the id of its key.
-- Locks: none.
SELECT t.sealed, t.is_truncated, t.text_key_id
FROM inference_storedtext AS t
INNER JOIN accounts_workspace AS w ON t.workspace_id = w.id
WHERE
    t.generation_id = $2
    AND t.organization_id = $1
    AND w.deleted_at IS NULL
    AND t.created_at
    >= now() - make_interval(days => least(coalesce(w.io_logging_retention_days, $3), $3))
    AND NOT EXISTS (
        SELECT 1 FROM inference_textdeletion AS d
        WHERE
            d.organization_id = t.organization_id
            AND d.deleted_at >= t.created_at
            AND (d.workspace_id IS NULL OR d.workspace_id = t.workspace_id)
            AND (d.api_key_id IS NULL OR d.api_key_id = t.api_key_id)
            AND (d.generation_id IS NULL OR d.generation_id = t.generation_id)
    )
