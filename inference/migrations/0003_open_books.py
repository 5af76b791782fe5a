"""Begins the books with the generations that are there: what they cost was paid by nobody."""

from django.db import migrations

FORWARD = """
INSERT INTO billing_transfer (organization_id, kind, debit_id, credit_id, amount_nano, posted_nano,
                              status, reference, actor, ended_at)
SELECT g.organization_id, 'write_off', d.id, u.id, g.cost_nano, g.cost_nano, 'posted', g.id,
       'opening of the books', now()
FROM inference_generation g
JOIN billing_account d ON d.organization_id = g.organization_id AND d.kind = 'write_off'
JOIN billing_account u ON u.organization_id = g.organization_id AND u.kind = 'usage'
WHERE g.cost_nano > 0;
UPDATE billing_account a
SET posted_debits = CASE a.kind WHEN 'write_off' THEN s.cost ELSE 0 END,
    posted_credits = CASE a.kind WHEN 'usage' THEN s.cost ELSE 0 END
FROM (SELECT organization_id, sum(cost_nano) AS cost FROM inference_generation GROUP BY 1) s
WHERE a.organization_id = s.organization_id AND a.kind IN ('write_off', 'usage');
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
        SELECT unnest(ARRAY[api_key_id, workspace_id]) AS subject_id, created_at,
               (created_at AT TIME ZONE 'UTC')::date AS day,
               (now() AT TIME ZONE 'UTC')::date AS today, cost_nano AS cost,
               CASE WHEN is_byok THEN upstream_cost_nano ELSE 0 END AS byok
        FROM inference_generation
    ) g
    GROUP BY subject_id, today
) s
WHERE m.subject_id = s.subject_id;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0002_ledger"),
        ("billing", "0002_triggers"),
    ]

    operations = [migrations.RunSQL(FORWARD, migrations.RunSQL.noop)]
