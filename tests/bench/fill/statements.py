"""The SQL statements that fill a database with a month of plausible traffic.

They use psycopg's named parameters. ``organizations`` are the organizations to fill;
``begin`` and ``end`` bound the time. ``begins``, ``lasts``, ``made`` and ``before`` are arrays over
the hours of a day: when an hour begins, how long it lasts, its rows, and the rows before it.
"""

from __future__ import annotations

from typing import Final

from catalog.pricing import NANO

# The name of an organization's end user by its number ``k``. Generations use the same names.
_USER: Final = """CASE k %% 4
    WHEN 0 THEN 'user_' || substr(md5(k::text), 1, 16)
    WHEN 1 THEN 'customer-' || k
    WHEN 2 THEN (ARRAY['ada', 'ben', 'chloe', 'dmitri', 'elif', 'femi', 'grace'])[1 + k %% 7]
                || '.' || k || '@mail.example'
    ELSE 'tenant-' || k %% 97 || '/session-' || k
END"""

INSERT_MEMBERS: Final = """
INSERT INTO accounts_member (id, created_at, updated_at, organization_id, email, first_name,
                             last_name, role)
SELECT gen_random_uuid(), at, at, o.id, lower(first) || '.' || lower(last) || n || '@' || o.slug
       || '.example', first, last, CASE WHEN n = 1 THEN 'admin' ELSE 'member' END
FROM accounts_organization o
CROSS JOIN generate_series(1, %(each)s) AS n
CROSS JOIN LATERAL (SELECT
    (ARRAY['Ada', 'Ben', 'Chloe', 'Dmitri', 'Elif', 'Femi', 'Grace'])[1 + n %% 7] AS first,
    (ARRAY['Adeyemi', 'Berg', 'Costa', 'Dietrich', 'Evans', 'Fujita'])[1 + n %% 6] AS last,
    %(begin)s - random() * interval '300 days' AS at) AS named
WHERE o.id = ANY (%(organizations)s)
"""

# Nobody has the secrets of these keys: the digests are random.
INSERT_KEYS: Final = """
INSERT INTO accounts_apikey (id, created_at, updated_at, organization_id, workspace_id, name,
                             label, digest, is_management, disabled, expires_at, limit_nano,
                             limit_reset, external_user, creator_id, deleted_at)
SELECT gen_random_uuid(), at, at, w.organization_id, w.id,
       (ARRAY['Backend', 'Batch jobs', 'Chat widget', 'Data team', 'Evaluation', 'Search'])
           [1 + n %% 6] || ' ' || n,
       CASE WHEN n = 1 THEN 'mk-cw-' ELSE 'sk-cw-' END || substr(digest, 1, 3) || '…'
           || substr(digest, 4, 3),
       digest, n = 1, luck < 0.08, CASE WHEN luck > 0.9 THEN at + interval '90 days' END,
       CASE WHEN n > 1 AND n %% 5 = 0 THEN n * 1000000000::bigint END,
       CASE WHEN n > 1 AND n %% 5 = 0 THEN 'monthly' END,
       NULL, m.id, CASE WHEN luck < 0.04 THEN %(end)s - interval '1 day' END
FROM generate_series(1, %(each)s) AS n
CROSS JOIN (SELECT *, row_number() OVER (PARTITION BY organization_id ORDER BY slug) AS place
            FROM accounts_workspace WHERE organization_id = ANY (%(organizations)s)) AS w
CROSS JOIN LATERAL (
    SELECT random() AS luck, %(begin)s - random() * interval '300 days' AS at,
           replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '') AS digest
    WHERE n > 0
) AS drawn
LEFT JOIN LATERAL (
    SELECT id FROM accounts_member
    WHERE organization_id = w.organization_id ORDER BY email OFFSET n %% 3 LIMIT 1
) AS m ON n %% 4 <> 0
WHERE w.place = 1 + n %% %(workspaces)s
"""

INSERT_KEY_GUARDRAILS: Final = """
INSERT INTO accounts_keyassignment (id, created_at, updated_at, guardrail_id, api_key_id,
                                    assigned_by)
SELECT gen_random_uuid(), %(begin)s, %(begin)s, g.id, k.id, %(actor)s
FROM accounts_guardrail g JOIN accounts_apikey k USING (organization_id)
WHERE g.organization_id = ANY (%(organizations)s) AND k.name LIKE 'Batch jobs%%'
  AND k.deleted_at IS NULL
"""

# Each endpoint comes with its price version, some with an attestation, some with a validation.
# Their hosts are under a name that never resolves.
INSERT_ENDPOINTS: Final = """
WITH offers AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY e.id) - 1 AS number, count(*) OVER () AS offered, e.model_id,
           e.provider_id, e.upstream_model_id, p.name AS provider_name, p.slug AS provider_slug,
           v.prompt, v.completion, v.cache_read
    FROM catalog_modelendpoint e
    JOIN catalog_provider p ON p.id = e.provider_id
    JOIN catalog_priceversion v ON v.id = e.price_id
    WHERE p.base_url IS NOT NULL AND e.is_listed AND p.is_listed
),
drawn AS MATERIALIZED (
    SELECT n, gen_random_uuid() AS id, random() AS luck, random() AS zdr, random() AS region,
           floor(random() * (SELECT max(offered) FROM offers))::bigint AS number,
           %(begin)s + n / %(wanted)s::float8 * (%(end)s - %(begin)s) AS at,
           (%(organizations)s::uuid[])[1 + n %% cardinality(%(organizations)s::uuid[])]
               AS organization_id
    FROM generate_series(1, %(wanted)s) AS n
),
drafted AS MATERIALIZED (
    SELECT d.*, f.model_id, f.provider_id, f.upstream_model_id, f.provider_name, f.provider_slug,
           f.prompt, f.completion, f.cache_read, o.slug,
           nextval(pg_get_serial_sequence('catalog_priceversion', 'id')) AS price_id,
           CASE WHEN zdr < 0.3
                THEN nextval(pg_get_serial_sequence('endpoints_attestation', 'id'))
                END AS stated_id,
           CASE WHEN luck < 0.16 THEN gen_random_uuid() END AS validation_id,
           encode(sha256(d.id::text::bytea), 'hex') AS digest
    FROM drawn d
    JOIN offers f USING (number)
    JOIN accounts_organization o ON o.id = d.organization_id
    ORDER BY d.n
),
prices AS (
    INSERT INTO catalog_priceversion (id, subject_id, prompt, completion, image, request,
                                      cache_read, created_at)
    SELECT price_id, id, prompt * 0.8, completion * 0.8, 0, 0, cache_read * 0.8, at FROM drafted
),
stated AS (
    INSERT INTO endpoints_attestation (id, endpoint_id, declared_zdr, declared_region, stated_at,
                                       stated_by, request_id)
    SELECT stated_id, id, zdr < 0.25, CASE WHEN region < 0.5 THEN 'europe' ELSE 'us' END, at,
           %(actor)s, ''
    FROM drafted WHERE stated_id IS NOT NULL
),
validated AS (
    INSERT INTO endpoints_validation (id, created_at, updated_at, endpoint_id, workspace_id,
                                      credential_id, credential_version, configuration, outcome,
                                      purpose, checks, evidence, changes, cost_nano, duration_ms)
    SELECT d.validation_id, at + interval '5 minutes', at + interval '5 minutes', d.id, w.id, c.id,
           1, digest,
           CASE WHEN luck < 0.13 THEN 'passed' WHEN luck < 0.15 THEN 'failed'
                ELSE 'unreachable' END,
           'activation',
           jsonb_build_array(
               jsonb_build_object('name', 'base_url', 'passed', true),
               jsonb_build_object('name', 'completion', 'passed', luck < 0.13,
                   'reason', CASE WHEN luck >= 0.15 THEN 'unreachable'
                                  WHEN luck >= 0.13 THEN 'upstream_error' END)),
           '{}', '[]', (luck * 1000000)::bigint, (300 + luck * 20000)::int
    FROM drafted d
    JOIN accounts_workspace w ON w.organization_id = d.organization_id AND w.is_default
    LEFT JOIN LATERAL (SELECT id FROM accounts_byokcredential
                       WHERE organization_id = d.organization_id ORDER BY id LIMIT 1) c ON true
    WHERE d.validation_id IS NOT NULL
)
INSERT INTO endpoints_privateendpoint (
    id, created_at, updated_at, organization_id, status, model_id, provider_id, provider_name,
    upstream_model_id, base_url, declared_region, declared_zdr, price_id, validation_id,
    attestation_id, request_fingerprint, activated_at, activated_by, disabled_at, disabled_by,
    disabled_reason, deleted_by, drifted_at)
SELECT id, at, at, organization_id,
       CASE WHEN luck < 0.06 THEN 'active' WHEN luck < 0.08 THEN 'disabled' ELSE 'draft' END,
       model_id, provider_id, provider_name, upstream_model_id,
       'https://' || provider_slug || '-' || n || '.' || slug || '.example/v1',
       CASE WHEN stated_id IS NULL THEN NULL WHEN region < 0.5 THEN 'europe' ELSE 'us' END,
       CASE WHEN stated_id IS NOT NULL THEN zdr < 0.25 END,
       price_id, validation_id, stated_id, digest,
       CASE WHEN luck < 0.08 THEN at + interval '6 minutes' END,
       CASE WHEN luck < 0.08 THEN %(actor)s ELSE '' END,
       CASE WHEN luck >= 0.06 AND luck < 0.08 THEN %(end)s END,
       CASE WHEN luck >= 0.06 AND luck < 0.08 THEN %(actor)s ELSE '' END, '', '',
       CASE WHEN luck < 0.002 THEN %(end)s END
FROM drafted
"""

# One in five end users is registered through the API, which writes to the audit log.
INSERT_END_USERS: Final = """
WITH registered AS (
    INSERT INTO endusers_enduser (id, created_at, updated_at, organization_id, "user", is_active)
    SELECT gen_random_uuid(), at, at, organization_id, {user}, random() > 0.03
    FROM (
        SELECT ordinal / cardinality(%(organizations)s::uuid[]) + 1 AS k,
               (%(organizations)s::uuid[])[1 + ordinal %% cardinality(%(organizations)s::uuid[])]
                   AS organization_id,
               h.begin + (n - 1 + random()) / h.made * h.lasts AS at
        FROM unnest(%(begins)s::timestamptz[], %(lasts)s::interval[], %(made)s::bigint[],
                    %(before)s::bigint[]) AS h(begin, lasts, made, before)
        CROSS JOIN LATERAL generate_series(1, h.made) AS n
        CROSS JOIN LATERAL (SELECT h.before + n - 1 AS ordinal) AS counted
    ) AS numbered
    RETURNING id, created_at, organization_id, "user", is_active
)
INSERT INTO config_auditentry (at, actor, action, kind, object_id, organization_id, after)
SELECT created_at, 'management key of ' || organization_id, 'POST /api/v1/end-users',
       'endusers.enduser', id::text, organization_id,
       jsonb_build_object('id', id, 'user', "user", 'is_active', is_active,
                          'organization_id', organization_id)
FROM registered WHERE hashtext("user") %% 5 = 0
ORDER BY created_at
""".replace("{user}", _USER)

# The first organizations, keys and routes get most of the traffic. A key uses only a few models.
# Generations with the organization's own credential cost no credits. One in a hundred of the others
# costs more than its hold.
INSERT_GENERATIONS: Final = """
WITH private_routes AS MATERIALIZED (
    SELECT e.organization_id,
           row_number() OVER (PARTITION BY e.organization_id ORDER BY e.created_at) - 1 AS number,
           m.slug, m.canonical_slug, e.id, e.price_id, e.provider_name, e.attestation_id, v.prompt,
           v.completion, coalesce(v.cache_read, v.prompt) AS cache_read, v.request
    FROM endpoints_privateendpoint e
    JOIN catalog_languagemodel m ON m.id = e.model_id
    JOIN catalog_priceversion v ON v.id = e.price_id
    WHERE e.organization_id = ANY (%(organizations)s) AND e.status = 'active'
),
routes AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY m.created DESC, e.id) - 1 AS number, m.slug,
           m.canonical_slug, e.id, e.price_id, p.name AS provider_name, v.prompt, v.completion,
           coalesce(v.cache_read, v.prompt) AS cache_read, v.request
    FROM catalog_modelendpoint e
    JOIN catalog_languagemodel m ON m.id = e.model_id
    JOIN catalog_provider p ON p.id = e.provider_id
    JOIN catalog_priceversion v ON v.id = e.price_id
    WHERE e.is_listed AND m.is_listed AND p.is_listed AND 'text' = ANY (m.output_modalities)
),
keys AS MATERIALIZED (
    SELECT row_number() OVER (ORDER BY array_position(%(organizations)s, organization_id), k.id) - 1
               AS number,
           k.id, organization_id, workspace_id, creator_id, coalesce(own.routes, 0) AS own_routes
    FROM accounts_apikey k
    LEFT JOIN (SELECT organization_id, count(*) AS routes FROM private_routes GROUP BY 1) AS own
        USING (organization_id)
    WHERE organization_id = ANY (%(organizations)s) AND NOT is_management AND NOT disabled
),
drawn AS MATERIALIZED (
    SELECT h.begin + (n - 1 + random()) / h.made * h.lasts AS at,
           floor(power(random(), 2) * (SELECT count(*) FROM keys))::bigint AS key_number,
           random() AS luck, random() AS place, random() AS own, random() AS surprise,
           30 + floor(30 * exp(5 * random()))::bigint AS asked,
           10 + floor(10 * exp(5 * random()))::bigint AS answered,
           random() AS cached, 1 + floor(power(random(), 3) * %(users_each)s)::bigint AS k,
           random() AS named, (150 + 1200 * power(random(), 3))::int AS latency
    FROM unnest(%(begins)s::timestamptz[], %(lasts)s::interval[], %(made)s::bigint[])
             AS h(begin, lasts, made)
    CROSS JOIN LATERAL generate_series(1, h.made) AS n
),
chosen AS MATERIALIZED (
    SELECT *, floor(power(abs(hashtext(key_number || (place < 0.7)::text)::float8) / 2147483649, 3)
                    * (SELECT count(*) FROM routes))::bigint AS route_number
    FROM drawn
),
served AS MATERIALIZED (
    SELECT d.*, key.id AS api_key_id, key.organization_id, key.workspace_id, key.creator_id,
           coalesce(o.slug, r.slug) AS slug,
           coalesce(o.canonical_slug, r.canonical_slug) AS canonical_slug,
           CASE WHEN o.id IS NULL THEN r.id END AS model_endpoint_id, o.id AS private_endpoint_id,
           coalesce(o.price_id, r.price_id) AS price_id,
           coalesce(o.provider_name, r.provider_name) AS provider_name, o.attestation_id,
           coalesce(o.prompt, r.prompt) AS prompt, coalesce(o.completion, r.completion)
               AS completion,
           coalesce(o.cache_read, r.cache_read) AS cache_read,
           coalesce(o.request, r.request) AS request,
           o.id IS NOT NULL OR own > 0.95 AS is_byok,
           CASE WHEN luck < 0.025 THEN 'failed' WHEN luck < 0.04 THEN 'cancelled'
                ELSE 'completed' END AS status,
           CASE WHEN cached > 0.7 THEN asked * 6 / 10 ELSE 0 END AS from_cache
    FROM chosen d
    JOIN keys key ON key.number = d.key_number
    JOIN routes r ON r.number = d.route_number
    LEFT JOIN private_routes o
        ON o.organization_id = key.organization_id
           AND o.number = CASE WHEN own < 0.15 THEN floor(place * key.own_routes)::bigint END
),
priced AS MATERIALIZED (
    SELECT *, round(({nano} * (prompt * (asked - from_cache) + cache_read * from_cache
                               + completion * answered + request)))::bigint AS worth
    FROM served
)
INSERT INTO inference_generation (
    id, organization_id, workspace_id, api_key_id, member_id, end_user, session_id, region,
    app_title, user_agent, operation, streamed, model, private_endpoint_id, model_endpoint_id,
    provider_name, attestation_id, price_id, is_byok, status, prompt_tokens, completion_tokens,
    cached_tokens, cache_write_tokens, reasoning_tokens, is_estimated, hold_nano,
    upstream_hold_nano, cost_nano, upstream_cost_nano, finish_reason, native_finish_reason,
    upstream_id, upstream_model, error_type, attempts, created_at, latency_ms, duration_ms,
    request_id)
SELECT 'gen-' || floor(extract(epoch FROM at))::bigint || '-'
           || substr(replace(gen_random_uuid()::text, '-', ''), 1, 20),
       organization_id, workspace_id, api_key_id, creator_id,
       CASE WHEN named < 0.7 THEN {user} END, NULL, 'global',
       CASE WHEN named < 0.4 THEN 'Assistant' END, 'openai-python/3.1', 'chat/completions',
       luck > 0.5, slug, private_endpoint_id, model_endpoint_id, provider_name, attestation_id,
       price_id, is_byok, status,
       CASE WHEN status <> 'failed' THEN asked END, CASE WHEN status <> 'failed' THEN answered END,
       CASE WHEN status <> 'failed' THEN from_cache END, NULL, NULL, status = 'cancelled',
       CASE WHEN is_byok THEN 0 WHEN surprise < 0.01 AND status <> 'failed' THEN worth - worth / 3
            ELSE worth + worth / 2 END,
       CASE WHEN is_byok THEN worth + worth / 2 ELSE 0 END,
       CASE WHEN is_byok OR status = 'failed' THEN 0 ELSE worth END,
       CASE WHEN status = 'failed' THEN 0 ELSE worth END,
       CASE status WHEN 'completed' THEN 'stop' END, CASE status WHEN 'completed' THEN 'stop' END,
       CASE WHEN status <> 'failed' THEN 'chatcmpl-' || md5(luck::text) END,
       CASE WHEN status <> 'failed' THEN canonical_slug END,
       CASE WHEN status = 'failed' THEN 'provider_unavailable' END,
       jsonb_build_array(
           jsonb_build_object('provider', provider_name, 'endpoint_id',
                              coalesce(private_endpoint_id, model_endpoint_id), 'is_byok', is_byok,
                              'latency_ms', latency, 'status', 200)
           || CASE WHEN status = 'failed'
                   THEN '{"status": 503, "error_type": "provider_unavailable"}' ELSE '{}' END::jsonb
       ),
       at, CASE WHEN status <> 'failed' THEN latency END, latency + answered * 12, ''
FROM priced ORDER BY at
""".replace("{user}", _USER).replace("{nano}", str(NANO))

INSERT_TOP_UPS: Final = """
WITH drawn AS MATERIALIZED (
    SELECT gen_random_uuid() AS id, n,
           %(begin)s + n / %(wanted)s::float8 * (%(end)s - %(begin)s - interval '1 day') AS at,
           random() AS luck, (10 + floor(random() * 490))::bigint * 100 AS cents,
           1 + floor(random() * 9999)::bigint AS tail, '0x' || substr(md5(n || 'from'), 1, 32)
               || substr(md5(n::text), 1, 8) AS sender,
           '0x' || md5(n || 'tx') || md5(n || 'hash') AS tx_hash,
           (%(organizations)s::uuid[])[1 + n %% cardinality(%(organizations)s::uuid[])]
               AS organization_id
    FROM generate_series(1, %(wanted)s) AS n
),
asked AS MATERIALIZED (
    SELECT *, CASE WHEN luck < 0.75 THEN 'confirmed' WHEN luck < 0.97 THEN 'expired'
                   ELSE 'review' END AS status,
           20000000 + floor(extract(epoch FROM at) / 2)::bigint %% 100000000 AS block_number
    FROM drawn
),
top_ups AS (
    INSERT INTO billing_topup (
        id, created_at, updated_at, organization_id, status, amount_nano, chain_id, token,
        token_symbol, token_decimals, sender, recipient, units, expires_at, payable_until,
        is_reserved, tx_hash, block_number, confirmed_at, requested_by, request_fingerprint)
    SELECT id, at, at, organization_id, status, cents * 10000000, %(chain)s, %(token)s, 'USDC', 6,
           sender, %(recipient)s, cents * 10000 + tail, at + interval '1 hour',
           at + interval '25 hours', false, CASE WHEN status = 'confirmed' THEN tx_hash ELSE '' END,
           CASE WHEN status = 'confirmed' THEN block_number END,
           CASE WHEN status = 'confirmed' THEN at + interval '12 minutes' END, %(actor)s,
           encode(sha256(id::text::bytea), 'hex')
    FROM asked
)
INSERT INTO billing_deposit (
    id, created_at, updated_at, status, finding, chain_id, tx_hash, ordinal, block_number,
    block_hash, mined_at, token, token_symbol, token_decimals, sender, recipient, units,
    amount_nano, top_up_id, organization_id, resolved_by, note)
SELECT gen_random_uuid(), at + interval '12 minutes', at + interval '12 minutes', found, found,
       %(chain)s, tx_hash, 0, block_number, '0x' || md5(block_number::text) || md5(tx_hash),
       at + interval '10 minutes', %(token)s, 'USDC', 6, sender, %(recipient)s,
       units, units * 1000, id, CASE WHEN status = 'confirmed' THEN organization_id END, '', ''
FROM asked CROSS JOIN LATERAL (
    SELECT CASE WHEN status = 'confirmed' THEN 'credited' WHEN luck < 0.985 THEN 'under'
                ELSE 'over' END AS found,
           cents * 10000 + CASE WHEN status = 'confirmed' THEN tail WHEN luck < 0.985 THEN -5
                                ELSE tail + 5000000 END AS units
) AS judged
WHERE status <> 'expired'
"""

INSERT_CHAIN_STATE: Final = """
INSERT INTO billing_chainstate (chain_id, latest_number, scanned_at, halt_reason, resumed_by,
                                failures, failure)
VALUES (%(chain)s, (SELECT max(block_number) FROM billing_deposit), %(end)s, '', '', 0, '')
ON CONFLICT DO NOTHING
"""

INSERT_GRANT_REQUESTS: Final = """
INSERT INTO billing_grantrequest (id, created_at, updated_at, organization_id, amount_nano, note,
                                  status, requested_by, decided_at, decided_by)
SELECT gen_random_uuid(), at, at, (%(organizations)s::uuid[])[n], n * 250000000000, 'Goodwill.',
       CASE WHEN n < 6 THEN 'requested' ELSE 'declined' END, 'operator ada',
       CASE WHEN n >= 6 THEN at + interval '1 hour' END, CASE WHEN n >= 6 THEN 'operator ben'
       ELSE '' END
FROM generate_series(1, 20) AS n CROSS JOIN LATERAL (SELECT %(end)s - n * interval '30 hours' AS at)
    AS asked
"""

# Transfers for the generations, refunds and deposits of a day, and grants up to the wanted number.
# Each organization begins with credits for all of its usage; the last ones have little left over.
INSERT_TRANSFERS: Final = """
WITH moved AS MATERIALIZED (
    SELECT organization_id, 'usage' AS kind, 'credits' AS source, 'usage' AS target,
           hold_nano AS amount, nullif(least(cost_nano, hold_nano), 0) AS posted, id AS reference,
           '' AS actor, '' AS note, created_at,
           created_at + duration_ms * interval '1 ms' AS ended_at
    FROM inference_generation
    WHERE id >= %(first_id)s AND id < %(last_id)s AND organization_id = ANY (%(organizations)s)
      AND hold_nano > 0
    UNION ALL
    SELECT organization_id, v.kind, v.source, 'usage', cost_nano - hold_nano,
           cost_nano - hold_nano, id, '', '', created_at, created_at
    FROM inference_generation
    CROSS JOIN LATERAL (
        SELECT CASE WHEN hashtext(id) %% 20 = 0 THEN 'write_off' ELSE 'excess' END AS kind,
               CASE WHEN hashtext(id) %% 20 = 0 THEN 'write_off' ELSE 'credits' END AS source
    ) AS v
    WHERE id >= %(first_id)s AND id < %(last_id)s AND organization_id = ANY (%(organizations)s)
      AND cost_nano > hold_nano
    UNION ALL
    SELECT organization_id, 'refund', 'usage', 'credits', least(cost_nano, hold_nano),
           least(cost_nano, hold_nano), id, 'operator ada', 'The answer was cut off.',
           created_at + interval '1 minute', created_at + interval '1 minute'
    FROM inference_generation
    WHERE id >= %(first_id)s AND id < %(last_id)s AND organization_id = ANY (%(organizations)s)
      AND hashtext(id) %% 500 = 1 AND least(cost_nano, hold_nano) > 0
    UNION ALL
    SELECT organization_id, 'deposit', 'deposits', 'credits', amount_nano::bigint,
           amount_nano::bigint, 'deposit:' || id, 'watcher', '', created_at, created_at
    FROM billing_deposit
    WHERE status = 'credited' AND created_at >= %(begin)s AND created_at < %(end)s
    UNION ALL
    SELECT o.id, 'grant', 'grants', 'credits', o.nano, o.nano, NULL, %(actor)s, 'Opening credits.',
           %(begin)s, %(begin)s
    FROM unnest(%(opened)s::uuid[], %(openings)s::bigint[]) AS o(id, nano)
),
granted AS MATERIALIZED (
    SELECT (%(generous)s::uuid[])
               [1 + floor(power(random(), 2) * cardinality(%(generous)s::uuid[]))::int]
               AS organization_id, 'grant' AS kind, 'grants' AS source, 'credits' AS target,
           (1 + floor(random() * 40))::bigint * 5000000 AS amount,
           %(begin)s + (%(end)s - %(begin)s) * (n - 0.5) / wanted AS at
    FROM (SELECT %(wanted)s - count(*) AS wanted FROM moved) AS rest
    CROSS JOIN LATERAL generate_series(1, wanted) AS n
),
everything AS (
    SELECT * FROM moved
    UNION ALL
    SELECT organization_id, kind, source, target, amount, amount, NULL, %(actor)s,
           'Prepaid package.', at, at
    FROM granted
)
INSERT INTO billing_transfer (organization_id, kind, debit_id, credit_id, amount_nano, posted_nano,
                              status, reference, actor, note, created_at, ended_at)
SELECT e.organization_id, e.kind, d.id, c.id, amount, posted,
       CASE WHEN posted IS NULL THEN 'voided' ELSE 'posted' END, reference, actor, note, created_at,
       ended_at
FROM everything e
JOIN billing_account d ON d.organization_id = e.organization_id AND d.kind = e.source
JOIN billing_account c ON c.organization_id = e.organization_id AND c.kind = e.target
ORDER BY created_at
"""

READ_USAGE: Final = """
SELECT o.id, coalesce(sum(g.cost_nano), 0)::bigint
FROM unnest(%(organizations)s::uuid[]) WITH ORDINALITY AS o(id, place)
LEFT JOIN inference_generation g ON g.organization_id = o.id
GROUP BY o.id, o.place ORDER BY o.place
"""

UPDATE_BALANCES: Final = """
UPDATE billing_account a SET posted_debits = s.debits, posted_credits = s.credits
FROM (
    SELECT account_id, sum(debits) AS debits, sum(credits) AS credits
    FROM (
        SELECT debit_id AS account_id, coalesce(posted_nano, 0) AS debits, 0 AS credits
        FROM billing_transfer
        UNION ALL
        SELECT credit_id, 0, coalesce(posted_nano, 0) FROM billing_transfer
    ) AS sides GROUP BY account_id
) AS s
WHERE s.account_id = a.id AND a.organization_id = ANY (%(organizations)s)
"""

UPDATE_METERS: Final = """
UPDATE billing_meter m
SET day = s.today, cost = s.cost, byok = s.byok, cost_daily = s.cost_daily,
    byok_daily = s.byok_daily, cost_weekly = s.cost_weekly, byok_weekly = s.byok_weekly,
    cost_monthly = s.cost_monthly, byok_monthly = s.byok_monthly, requests = s.requests,
    last_used_at = s.last_used_at
FROM (
    SELECT subject_id, today, count(*) AS requests, max(created_at) AS last_used_at,
           sum(cost) AS cost, sum(byok) AS byok,
           coalesce(sum(cost) FILTER (WHERE day >= today), 0) AS cost_daily,
           coalesce(sum(byok) FILTER (WHERE day >= today), 0) AS byok_daily,
           coalesce(sum(cost) FILTER (WHERE day >= date_trunc('week', today)), 0) AS cost_weekly,
           coalesce(sum(byok) FILTER (WHERE day >= date_trunc('week', today)), 0) AS byok_weekly,
           coalesce(sum(cost) FILTER (WHERE day >= date_trunc('month', today)), 0) AS cost_monthly,
           coalesce(sum(byok) FILTER (WHERE day >= date_trunc('month', today)), 0) AS byok_monthly
    FROM (
        SELECT s.subject_id, created_at, (created_at AT TIME ZONE 'UTC')::date AS day,
               (%(end)s AT TIME ZONE 'UTC')::date AS today, cost_nano AS cost,
               CASE WHEN is_byok THEN upstream_cost_nano ELSE 0 END AS byok
        FROM inference_generation
        CROSS JOIN LATERAL (VALUES (api_key_id), (workspace_id), (member_id)) AS s(subject_id)
        WHERE organization_id = ANY (%(organizations)s) AND s.subject_id IS NOT NULL
    ) AS g
    GROUP BY subject_id, today
) AS s
WHERE m.subject_id = s.subject_id
"""

INSERT_FEEDBACK: Final = """
INSERT INTO inference_feedback (generation_id, category, comment, created_by, created_at)
SELECT id, (ARRAY['latency', 'incoherence', 'incorrect_response', 'formatting'])
               [1 + abs(hashtext(id)) %% 4],
       'As the user saw it.', 'inference key', created_at + interval '1 minute'
FROM inference_generation
WHERE organization_id = ANY (%(organizations)s) AND hashtext(id) %% 100 = 7
ORDER BY created_at
"""
