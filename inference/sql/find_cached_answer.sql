-- Finds an entry of the response cache of an organization, and leaves its answer where it is.
--
-- Parameters: $1 uuid, the organization; $2 bytea, the cache key.
-- Returns: the columns of `CachedAnswer`, if there is an entry that has not expired.
-- Locks: none.
SELECT
    id, size, generation_id, endpoint_id,
    floor(extract(EPOCH FROM now() - created_at))::int AS age,
    ceil(extract(EPOCH FROM expires_at - now()))::int AS seconds_left
FROM inference_keptanswer
WHERE organization_id = $1 AND cache_key = $2 AND expires_at > now()
