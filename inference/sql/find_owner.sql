-- Finds the organization of a row that another transaction has locked.
--
-- Parameters: $1 text, the table of the row, or its partition; $2 tid, its address.
-- Returns: the organization's id; no row if the row has moved, or if its table has no organization.
-- Locks: none.
SELECT a.organization_id
FROM billing_account AS a
WHERE $1::text = 'billing_account' AND a.ctid = $2::tid
UNION ALL
SELECT m.organization_id
FROM billing_meter AS m
WHERE $1::text = 'billing_meter' AND m.ctid = $2::tid
UNION ALL
SELECT t.organization_id
FROM billing_transfer AS t
WHERE
    $1::text LIKE 'billing\_transfer%'
    AND t.tableoid = to_regclass($1::text) AND t.ctid = $2::tid
UNION ALL
SELECT o.id AS organization_id
FROM accounts_organization AS o
WHERE $1::text = 'accounts_organization' AND o.ctid = $2::tid
UNION ALL
SELECT k.organization_id
FROM accounts_apikey AS k
WHERE $1::text = 'accounts_apikey' AND k.ctid = $2::tid
UNION ALL
SELECT g.organization_id
FROM inference_generation AS g
WHERE
    $1::text LIKE 'inference\_generation%'
    AND g.tableoid = to_regclass($1::text) AND g.ctid = $2::tid
UNION ALL
SELECT g.organization_id
FROM inference_journal AS j
INNER JOIN inference_generation AS g ON j.generation_id = g.id
WHERE $1::text = 'inference_journal' AND j.ctid = $2::tid
