-- Notes the refusals of organizations' own credentials, which rest for a minute.
--
-- A refusal that comes within a quarter of an hour after the last one continues it.
--
-- Parameters: $1 json, an array of `RefusedOwn`.
-- Returns: nothing. A secret that was replaced meanwhile is not marked, nor is a credential that a
--          change has locked: the next refusal marks it.
--
-- Lock order: rows of accounts_byokcredential by id, and locked ones are skipped; then rows of
--             accounts_credentialrest in the same order.
INSERT INTO accounts_credentialrest AS t (credential_id, upstream_status, since, seen_at)
SELECT refused.id, refused.status, now(), now()
FROM (
    SELECT c.id, v.status
    FROM json_to_recordset($1::json) AS v (credential_id uuid, label text, status integer)
    INNER JOIN accounts_byokcredential AS c ON v.credential_id = c.id AND v.label = c.label
    WHERE c.deleted_at IS NULL
    ORDER BY c.id
    FOR KEY SHARE OF c SKIP LOCKED
) AS refused
ON CONFLICT (credential_id) DO UPDATE
    SET
        upstream_status = excluded.upstream_status,
        seen_at = excluded.seen_at,
        since = CASE
            WHEN t.seen_at < now() - interval '15 minutes' THEN excluded.since ELSE t.since
        END
