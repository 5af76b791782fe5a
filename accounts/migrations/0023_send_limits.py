"""Adds the limit of sends by hand, and the mean duration of attempts, which tells slow receivers."""

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0022_guardrail_shadows"),
    ]

    operations = [
        migrations.CreateModel(
            name="ManualSends",
            fields=[
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="accounts.organization",
                    ),
                ),
                ("minute", models.DateTimeField()),
                ("count", models.PositiveSmallIntegerField()),
            ],
            options={
                "verbose_name_plural": "manual sends",
            },
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="subscription",
            name="audit",
        ),
        migrations.AddField(
            model_name="broadcastprogress",
            name="mean_ms",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                help_text="Milliseconds that a request takes on average; the last ones count most.",
                verbose_name="mean duration",
            ),
        ),
        migrations.AddField(
            model_name="subscription",
            name="mean_ms",
            field=models.PositiveIntegerField(
                db_default=0,
                default=0,
                editable=False,
                help_text="Milliseconds that an attempt takes on average; the last ones count most.",
                verbose_name="mean duration",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="subscription",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'failures', 'failing_since', 'retry_at', 'mean_ms']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'failures', 'failing_since', 'retry_at', 'mean_ms']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['sealed', 'previous']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['sealed', 'previous']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.subscription',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="5181ba43b3adf87d3e1a6262f73ea2457624b5c1",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_93875",
                    table="accounts_subscription",
                    when="AFTER",
                ),
            ),
        ),
    ]
