-- Forgets the refusals of own credentials that their providers accept again.
--
-- Parameters: $1 uuid[], the credentials.
-- Returns: nothing.
--
-- Lock order: rows of accounts_credentialrest by credential, and locked ones are skipped: whoever
--             writes a refusal at this moment knows better.
DELETE FROM accounts_credentialrest AS t
USING (
    SELECT credential_id
    FROM accounts_credentialrest
    WHERE credential_id = any($1)
    ORDER BY credential_id
    FOR UPDATE SKIP LOCKED
) AS gone
WHERE t.credential_id = gone.credential_id
