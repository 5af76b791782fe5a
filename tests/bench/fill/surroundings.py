"""SQL statements that fill what lies around the traffic: events, counts and change sets."""

from __future__ import annotations

from typing import Final

# In the order of time, as `config.events.outbox.new_event_id` makes it.
_ID: Final = """
(lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
    || substr(md5(random()::text || n), 1, 3) || '8' || substr(md5(n || random()::text), 1, 15)
)::uuid
"""

# Of the last 30 days, because older ones are deleted. Each goes to the webhook of its organization.
INSERT_EVENTS: Final = """
WITH events AS (
    INSERT INTO config_event (id, organization_id, kind, data, created_at, dispatched_at)
    SELECT {id}, (%(organizations)s::uuid[])
               [1 + floor(power(random(), 2) * cardinality(%(organizations)s::uuid[]))::int],
           (%(kinds)s::text[])[1 + n %% cardinality(%(kinds)s::text[])],
           (%(data)s::jsonb[])[1 + n %% cardinality(%(data)s::jsonb[])], at,
           at + interval '1 second'
    FROM (
        SELECT n, %(end)s - interval '30 days' * (1 - (n - 0.5) / %(wanted)s) AS at
        FROM generate_series(1, %(wanted)s) AS n
    ) AS drawn
    RETURNING *
)
INSERT INTO accounts_delivery (id, organization_id, subscription_id, event_id, status, attempts,
                               next_attempt_at, response_status, error, duration_ms, created_at,
                               delivered_at)
SELECT {id}, organization_id, subscription_id, event_id,
       CASE WHEN luck < 0.95 THEN 'delivered' ELSE 'failed' END,
       CASE WHEN luck < 0.95 THEN 1 ELSE 8 END, at, CASE WHEN luck < 0.95 THEN 200 ELSE 503 END,
       '', 20 + floor(luck * 300)::int, at, CASE WHEN luck < 0.95 THEN at END
FROM (
    SELECT e.id AS event_id, e.organization_id, s.id AS subscription_id, e.dispatched_at AS at,
           random() AS luck, row_number() OVER () AS n
    FROM events e JOIN accounts_subscription s USING (organization_id)
) AS sent
""".replace("{id}", _ID)

# Twenty keys for each shadow, in each hour of a week.
INSERT_SHADOW_COUNTS: Final = """
INSERT INTO inference_shadowcount (shadow_id, api_key_id, hour, reason, requests)
SELECT s.id, k.id, date_trunc('hour', %(end)s - n * interval '1 hour'), r.reason,
       1 + floor(random() * 500)::bigint
FROM accounts_guardrailshadow s
JOIN accounts_guardrail g ON g.id = s.guardrail_id
CROSS JOIN LATERAL (
    SELECT id FROM accounts_apikey WHERE organization_id = g.organization_id ORDER BY id LIMIT 20
) AS k
CROSS JOIN generate_series(0, 167) AS n
CROSS JOIN (VALUES (''), ('budget')) AS r(reason)
WHERE g.organization_id = ANY (%(organizations)s)
"""

# Each slot of five minutes of the last day, after which the counts are deleted.
INSERT_GUARDRAIL_COUNTS: Final = """
INSERT INTO inference_guardrailcount (guardrail_id, slot, reason, requests)
SELECT g.id, date_bin('5 minutes', %(end)s, 'epoch') - n * interval '5 minutes', r.reason,
       1 + floor(random() * 50)::bigint
FROM accounts_guardrail g CROSS JOIN generate_series(0, 287) AS n
CROSS JOIN (VALUES (''), ('budget')) AS r(reason)
WHERE g.organization_id = ANY (%(organizations)s)
"""

# One in forty waits for its approval.
INSERT_CHANGE_SETS: Final = """
INSERT INTO config_changeset (
    kind, operation, page, object_id, subject, organization_id, needs, arguments, state, changes,
    reason, status, proposed_by, proposed_at, decided_at, decided_by, outcome)
SELECT 'guardrails', 'form', 'accounts.guardrail', g.id::text, g.name, g.organization_id,
       'accounts.change_guardrail', '{}', '{}', '[]', 'Costs grew last month.',
       CASE n %% 40 WHEN 0 THEN 'proposed' WHEN 1 THEN 'rejected' ELSE 'applied' END,
       'operator ada', at, CASE WHEN n %% 40 > 0 THEN at + interval '1 hour' END,
       CASE WHEN n %% 40 > 0 THEN 'operator ben' ELSE '' END, ''
FROM (
    SELECT n, %(begin)s + (n - 0.5) / %(wanted)s * (%(end)s - %(begin)s) AS at,
           (%(organizations)s::uuid[])[1 + n %% cardinality(%(organizations)s::uuid[])] AS owner
    FROM generate_series(1, %(wanted)s) AS n
) AS drawn
JOIN LATERAL (
    SELECT * FROM accounts_guardrail WHERE organization_id = owner ORDER BY id LIMIT 1
) AS g ON true
ORDER BY at
"""
