-- Reads the ids of every model, provider and alias of the catalogue.
--
-- Returns: one row for each.
-- Locks: none.
SELECT m.id FROM catalog_languagemodel AS m WHERE m.organization_id IS NULL
UNION ALL
SELECT p.id FROM catalog_provider AS p
UNION ALL
SELECT a.id FROM catalog_modelalias AS a WHERE a.organization_id IS NULL
