-- Reads the ids of every model and provider of the catalogue.
--
-- Returns: one row for each.
-- Locks: none.
SELECT m.id FROM catalog_languagemodel AS m
UNION ALL
SELECT p.id FROM catalog_provider AS p
