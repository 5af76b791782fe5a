-- Finds those of a worker's generations that the database does not have as the worker stored them.
--
-- Parameters: $1 text[], the ids; $2 text[], those of them that have ended;
--             $3 text, $4 text, the lowest and the highest id, which name their partitions.
-- Returns: the ids of generations that do not exist, or that run although they have ended.
-- Locks: none.
SELECT w.id
FROM unnest($1::text[]) AS w (id)
LEFT JOIN (
    SELECT g.id, g.status
    FROM inference_generation AS g
    WHERE g.id = any($1::text[]) AND g.id >= $3::text AND g.id <= $4::text
) AS f ON w.id = f.id
WHERE f.id IS NULL OR f.status = 'pending' AND w.id = any($2::text[])
