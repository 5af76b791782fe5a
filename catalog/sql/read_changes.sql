-- Reads what has changed in the catalogue since a version.
--
-- Parameters: $1 bigint, the version of a copy.
-- Returns: one row: the present version; whether the log still has the version of the copy; and the
--          ids of the models and providers that changed after it.
-- Locks: none. One snapshot shows the version and exactly the changes that led to it.
WITH known AS (
    SELECT max(c.id) AS id FROM catalog_catalogchange AS c WHERE c.version = $1
)

SELECT
    coalesce((SELECT v.version FROM catalog_catalogversion AS v), 0) AS version,
    (SELECT k.id FROM known AS k) IS NOT NULL AS is_known,
    array(
        SELECT DISTINCT c.subject_id
        FROM catalog_catalogchange AS c
        WHERE c.id > (SELECT k.id FROM known AS k)
    ) AS subjects
