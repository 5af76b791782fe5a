-- Reads the operator's aliases of models.
--
-- Parameters: $1 uuid[], ids; those of other tables are ignored.
-- Returns: one row for each alias found: its id, its name and the names of its models.
-- Locks: none.
SELECT a.id, a.name, a.targets
FROM catalog_modelalias AS a
WHERE a.id = any($1) AND a.organization_id IS NULL
