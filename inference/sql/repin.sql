-- Moves a pending generation, and the price that it will pay, to its next candidate before the
-- candidate is called. The hold does not change: it covers every candidate. The request is counted
-- on the meter of the pool endpoint to which it moves, and no longer on that of the one it leaves.
--
-- Parameters: $1 text, the generation; $2 uuid, its organization;
--             $3 timestamptz, when its API key expires;
--             $4 uuid, $5 uuid, the private or the catalogue endpoint of the candidate;
--             $6 text, the provider's name; $7 bigint, the price version; $8 bool, whether an own
--             credential pays; $9 bigint, the attestation; $10 text, the model;
--             $11 bigint, $12 bigint, the organization's and the catalogue's version by which the
--             candidates were found;
--             $13 uuid, the candidate's meter if it is in a pool; $14 bigint, how many requests may
--             run there at once.
-- Returns: the id of the generation, whether it was moved, and the meters that count it besides
--          those of its key; it is not moved to an endpoint that is full. No row if the key has
--          expired, if one of the versions has moved, or if the generation has ended.
--
-- Lock order: the organization and the catalogue's version, both shared; then the generation, and
--             the meters of both endpoints by subject. See admit.sql for the reason.
WITH request AS (
    SELECT
        $2::uuid AS organization_id, $3::timestamptz AS key_expires_at,
        $4::uuid AS private_endpoint_id, $5::uuid AS model_endpoint_id, $6::text AS provider_name,
        $7::bigint AS price_id, $8::bool AS is_byok, $9::bigint AS attestation_id,
        $10::text AS model, $11::bigint AS routing_version, $12::bigint AS catalog_version,
        $13::uuid AS pool_id, $14::bigint AS most
),

locked_organizations AS MATERIALIZED (
    SELECT o.id, o.routing_version
    FROM accounts_organization AS o
    WHERE o.id = any(array(SELECT organization_id FROM request))
    ORDER BY o.id
    FOR SHARE
),

locked_catalog AS MATERIALIZED (
    SELECT causeway_hold_catalog() AS version
    WHERE (SELECT count(*) FROM locked_organizations) >= 0
),

locked_generation AS MATERIALIZED (
    SELECT
        r.*, g.id, g.limit_subjects, g.hold_nano, g.upstream_hold_nano,
        coalesce(g.held_tokens, 0) AS held_tokens,
        -- The generation is counted at an endpoint of a pool, and only once if this is repeated.
        CASE
            WHEN g.private_endpoint_id = any(g.limit_subjects)
                THEN nullif(g.private_endpoint_id, r.pool_id)
        END AS left_id,
        CASE WHEN r.pool_id = any(g.limit_subjects) THEN NULL ELSE r.pool_id END AS entered_id
    FROM inference_generation AS g
    CROSS JOIN request AS r
    INNER JOIN locked_organizations AS o
        ON r.organization_id = o.id AND r.routing_version = o.routing_version
    INNER JOIN locked_catalog AS c ON r.catalog_version = c.version
    WHERE
        g.id = $1::text AND g.status = 'pending'
        AND (r.key_expires_at IS NULL OR r.key_expires_at > now())
    FOR NO KEY UPDATE OF g
),

locked_meters AS MATERIALIZED (
    SELECT m.*
    FROM (
        SELECT s.id
        FROM locked_generation AS l
        CROSS JOIN LATERAL unnest(ARRAY[l.left_id, l.entered_id]) AS s (id)
        WHERE s.id IS NOT NULL
        ORDER BY s.id
    ) AS w
    CROSS JOIN LATERAL (
        SELECT m.ctid AS tid, m.subject_id, m.running
        FROM billing_meter AS m
        WHERE m.subject_id >= w.id AND m.subject_id <= w.id
        ORDER BY m.subject_id DESC
        LIMIT 1
        FOR NO KEY UPDATE
    ) AS m
),

accepted AS MATERIALIZED (
    SELECT l.*
    FROM locked_generation AS l
    WHERE
        -- Counting takes both locks before the first meter is changed.
        (SELECT count(*) FROM locked_meters) >= 0
        AND NOT EXISTS (
            SELECT 1 FROM locked_meters AS m
            WHERE m.subject_id = l.entered_id AND m.running >= l.most
        )
),

left_meters AS MATERIALIZED (
    SELECT
        causeway_settle_meters_1(
            array_agg(m.tid), array_agg(0::bigint), array_agg(0::bigint), array_agg(a.hold_nano),
            array_agg(a.upstream_hold_nano), array_agg(0::bigint), array_agg(a.held_tokens),
            array_agg(1::bigint)
        )
    FROM accepted AS a
    INNER JOIN locked_meters AS m ON a.left_id = m.subject_id
),

entered_meters AS MATERIALIZED (
    SELECT h.subject_id
    FROM (
        SELECT
            array_agg(m.tid) AS tids, array_agg(a.hold_nano) AS costs,
            array_agg(a.upstream_hold_nano) AS byoks, array_agg(a.held_tokens) AS tokens,
            array_agg(1::bigint) AS requests
        FROM accepted AS a
        INNER JOIN locked_meters AS m ON a.entered_id = m.subject_id
    ) AS e
    CROSS JOIN LATERAL causeway_hold_meters_1(
        e.tids, e.costs, e.byoks, e.tokens, e.requests
    ) AS h
),

moved AS (
    UPDATE inference_generation AS g
    SET
        private_endpoint_id = a.private_endpoint_id,
        model_endpoint_id = a.model_endpoint_id,
        provider_name = a.provider_name,
        price_id = a.price_id,
        is_byok = a.is_byok,
        attestation_id = a.attestation_id,
        model = a.model,
        limit_subjects = nullif(
            array_remove(array_remove(a.limit_subjects, a.left_id) || a.entered_id, NULL), '{}'
        )
    FROM accepted AS a
    WHERE g.id = $1::text AND g.id = a.id
    RETURNING g.id, g.limit_subjects
)

SELECT id, TRUE AS is_moved, limit_subjects
FROM moved
WHERE
    (SELECT count(*) FROM left_meters) >= 0
    AND (SELECT count(*) FROM entered_meters) >= 0
UNION ALL
SELECT l.id, FALSE AS is_moved, l.limit_subjects
FROM locked_generation AS l
WHERE NOT EXISTS (SELECT 1 FROM accepted)
