"""Change sets, and the rules that demand a second person, all of them off."""

import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


def make_rules(apps, schema_editor):
    """Creates a rule for each kind of this release."""
    rule = apps.get_model("config", "ChangeRule")
    kinds = ("prices", "guardrails", "deletions", "credentials")
    rule.objects.bulk_create([rule(kind=kind) for kind in kinds], ignore_conflicts=True)


class Migration(migrations.Migration):
    dependencies = [
        ("config", "0008_events"),
    ]

    operations = [
        migrations.CreateModel(
            name="ChangeRule",
            fields=[
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("prices", "Prices"),
                            ("guardrails", "Guardrails of all"),
                            ("deletions", "Deletions"),
                            ("credentials", "Provider credentials"),
                        ],
                        editable=False,
                        max_length=16,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "is_required",
                    models.BooleanField(
                        default=False, editable=False, verbose_name="second person"
                    ),
                ),
            ],
            options={
                "ordering": ("kind",),
            },
        ),
        migrations.CreateModel(
            name="ChangeSet",
            fields=[
                (
                    "id",
                    models.BigAutoField(primary_key=True, serialize=False, verbose_name="number"),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("prices", "Prices"),
                            ("guardrails", "Guardrails of all"),
                            ("deletions", "Deletions"),
                            ("credentials", "Provider credentials"),
                        ],
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("operation", models.CharField(editable=False, max_length=64)),
                (
                    "page",
                    models.CharField(editable=False, help_text="As app.model.", max_length=100),
                ),
                (
                    "object_id",
                    models.CharField(
                        default="", editable=False, max_length=255, verbose_name="object ID"
                    ),
                ),
                ("subject", models.CharField(editable=False, max_length=1100)),
                (
                    "organization_id",
                    models.UUIDField(editable=False, null=True, verbose_name="organization ID"),
                ),
                ("needs", models.CharField(editable=False, max_length=200)),
                ("arguments", models.JSONField(editable=False)),
                ("sealed_arguments", models.BinaryField(null=True)),
                ("state", models.JSONField(editable=False)),
                ("changes", models.JSONField(editable=False)),
                ("reason", models.TextField(editable=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("proposed", "proposed"),
                            ("applied", "applied"),
                            ("rejected", "rejected"),
                            ("withdrawn", "withdrawn"),
                            ("outdated", "outdated"),
                            ("expired", "expired"),
                        ],
                        default="proposed",
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("proposed_by", models.CharField(editable=False, max_length=255)),
                (
                    "proposed_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("decided_at", models.DateTimeField(editable=False, null=True)),
                ("decided_by", models.CharField(default="", editable=False, max_length=255)),
                ("outcome", models.TextField(default="", editable=False)),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="changerule",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'config.changerule',\n    changed ->> 'kind', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="2a148448f0809be0cc53704900736e6bdf2593d6",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_35bde",
                    table="config_changerule",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="changeset",
            index=models.Index(
                condition=models.Q(("status", "proposed")),
                fields=["proposed_at"],
                name="change_sets_waiting",
            ),
        ),
        migrations.AddConstraint(
            model_name="changeset",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("decided_at", None), ("status", "proposed")),
                    models.Q(
                        ("decided_at__isnull", False),
                        ("sealed_arguments", None),
                        models.Q(("status", "proposed"), _negated=True),
                    ),
                    _connector="OR",
                ),
                name="change_set_is_consistent",
            ),
        ),
        migrations.AddConstraint(
            model_name="changeset",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("status", "applied"), _negated=True),
                    models.Q(("decided_by", models.F("proposed_by")), _negated=True),
                    _connector="OR",
                ),
                name="change_set_needs_two",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="changeset",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="IF TG_OP = 'UPDATE' AND (OLD.status = 'proposed')\n   AND (NEW.id, NEW.kind, NEW.operation, NEW.page, NEW.object_id, NEW.subject, NEW.organization_id, NEW.needs, NEW.arguments, NEW.state, NEW.changes, NEW.reason, NEW.proposed_by, NEW.proposed_at)\n       IS NOT DISTINCT FROM\n       (OLD.id, OLD.kind, OLD.operation, OLD.page, OLD.object_id, OLD.subject, OLD.organization_id, OLD.needs, OLD.arguments, OLD.state, OLD.changes, OLD.reason, OLD.proposed_by, OLD.proposed_at)\nTHEN\n    RETURN NEW;\nEND IF;\nRAISE EXCEPTION 'a change set stays as it was proposed' USING ERRCODE = 'restrict_violation';",
                    hash="3320df2b00a592b20ad6018b44ea5ab6fcf7710e",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_38534",
                    table="config_changeset",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="changeset",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'arguments', 'state', 'changes', 'proposed_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'arguments', 'state', 'changes', 'proposed_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['sealed_arguments']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['sealed_arguments']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'config.changeset',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="650b99c1694dc90825a751bb472542ada95d4834",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_8d004",
                    table="config_changeset",
                    when="AFTER",
                ),
            ),
        ),
        migrations.RunPython(make_rules, migrations.RunPython.noop),
    ]
