-- Stores a batch of encrypted texts.
--
-- A deletion moves the epoch of its organization's key before it is stored itself. So a text that
-- was encrypted before is not stored by this statement, even if the two run at once: its worker
-- reads the key again, and finds the deletion. A text that a deletion covers is never stored.
-- A key that is locked is passed over: nobody else's texts wait for it.
--
-- Parameters: $1 json, an array of `TextRow`; $2 bytea[], their ciphertexts in the same order.
-- Returns: for each text its generation, whether its key is still the one and was not locked, and
--          whether the text was stored now.
--
-- Lock order: keys by id, shared, without a wait; then the new rows.
WITH rows_of_batch AS (
    SELECT *
    FROM json_to_recordset($1::json) AS v (
        place bigint, generation_id text, organization_id uuid, workspace_id uuid,
        api_key_id uuid, text_key_id bigint, epoch bigint, input_bytes int, output_bytes int,
        is_truncated bool, admitted_at bigint
    )
),

batch AS MATERIALIZED (
    SELECT r.*, c.sealed
    FROM rows_of_batch AS r
    INNER JOIN unnest($2::bytea[]) WITH ORDINALITY AS c (sealed, place) ON r.place = c.place
),

current_keys AS MATERIALIZED (
    SELECT k.id, k.epoch
    FROM inference_textkey AS k
    INNER JOIN (SELECT DISTINCT text_key_id, epoch FROM batch) AS b
        ON k.id = b.text_key_id AND k.epoch = b.epoch
    ORDER BY k.id
    FOR SHARE OF k SKIP LOCKED
),

stored AS (
    INSERT INTO inference_storedtext (
        generation_id, organization_id, workspace_id, api_key_id, text_key_id, sealed,
        input_bytes, output_bytes, is_truncated, created_at
    )
    SELECT
        b.generation_id, b.organization_id, b.workspace_id, b.api_key_id, b.text_key_id, b.sealed,
        b.input_bytes, b.output_bytes, b.is_truncated, to_timestamp(b.admitted_at)
    FROM batch AS b
    INNER JOIN current_keys AS k ON b.text_key_id = k.id AND b.epoch = k.epoch
    WHERE
        NOT EXISTS (
            SELECT 1 FROM inference_textdeletion AS d
            WHERE
                d.organization_id = b.organization_id
                AND d.deleted_at >= to_timestamp(b.admitted_at)
                AND (d.workspace_id IS NULL OR d.workspace_id = b.workspace_id)
                AND (d.api_key_id IS NULL OR d.api_key_id = b.api_key_id)
                AND (d.generation_id IS NULL OR d.generation_id = b.generation_id)
        )
    ORDER BY b.generation_id
    ON CONFLICT (generation_id) DO NOTHING
    RETURNING generation_id
)

SELECT b.generation_id, k.id IS NOT NULL AS is_current, s.generation_id IS NOT NULL AS is_stored
FROM batch AS b
LEFT JOIN current_keys AS k ON b.text_key_id = k.id AND b.epoch = k.epoch
LEFT JOIN stored AS s ON b.generation_id = s.generation_id
