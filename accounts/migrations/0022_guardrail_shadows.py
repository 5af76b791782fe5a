"""Adds shadows of guardrails, which count what they would refuse."""

import uuid

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0021_subscriptions"),
    ]

    operations = [
        migrations.CreateModel(
            name="GuardrailShadow",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("limits", models.JSONField()),
                ("started_by", models.CharField(editable=False, max_length=255)),
                (
                    "guardrail",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="shadow",
                        to="accounts.guardrail",
                    ),
                ),
            ],
            options={
                "ordering": ("created_at", "id"),
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="guardrailshadow",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = (SELECT organization_id FROM accounts_guardrail WHERE id = COALESCE(NEW.guardrail_id, OLD.guardrail_id))\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="7655f11458b7bec9aba56c89637af8eb1afe2d61",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_d2059",
                    table="accounts_guardrailshadow",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="guardrailshadow",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.guardrailshadow',\n    changed ->> 'id', (SELECT organization_id FROM accounts_guardrail WHERE id = (changed ->> 'guardrail_id')::uuid), was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="452ad372f37d7afc9ad2dc4193a6ec2547a14d75",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_0b3a1",
                    table="accounts_guardrailshadow",
                    when="AFTER",
                ),
            ),
        ),
    ]
