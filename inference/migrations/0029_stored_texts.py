"""Stores the inputs and outputs of generations, encrypted, for workspaces that log them.

Workers of the earlier release write none of these tables.
"""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0028_units_of_journals"),
    ]

    operations = [
        migrations.CreateModel(
            name="TextKey",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField(unique=True)),
                (
                    "sealed",
                    models.TextField(editable=False, help_text="Encrypted with a credential key."),
                ),
                ("epoch", models.BigIntegerField(db_default=0, default=0)),
                ("created_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="StoredText",
            fields=[
                (
                    "generation_id",
                    models.CharField(
                        db_collation="C", max_length=48, primary_key=True, serialize=False
                    ),
                ),
                ("organization_id", models.UUIDField()),
                ("workspace_id", models.UUIDField()),
                ("api_key_id", models.UUIDField()),
                ("text_key_id", models.BigIntegerField()),
                ("sealed", models.BinaryField()),
                ("input_bytes", models.IntegerField()),
                ("output_bytes", models.IntegerField()),
                (
                    "is_truncated",
                    models.BooleanField(help_text="A side was longer than what is stored."),
                ),
                ("created_at", models.DateTimeField(help_text="When the request was admitted.")),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["workspace_id", "created_at"], name="stored_text_by_workspace"
                    ),
                    models.Index(
                        fields=["organization_id", "created_at"], name="stored_text_by_owner"
                    ),
                    models.Index(fields=["created_at"], name="stored_text_by_time"),
                    models.Index(fields=["api_key_id", "created_at"], name="stored_text_by_key"),
                ],
            },
        ),
        migrations.CreateModel(
            name="TextDeletion",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("workspace_id", models.UUIDField(null=True)),
                ("api_key_id", models.UUIDField(null=True)),
                ("generation_id", models.CharField(db_collation="C", max_length=48, null=True)),
                ("deleted_at", models.DateTimeField()),
                ("deleted_by", models.CharField(max_length=255)),
                (
                    "is_finished",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="The rows of the texts are deleted.",
                    ),
                ),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["organization_id", "deleted_at"], name="text_deletion_by_owner"
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("api_key_id", None), ("workspace_id", None)),
                            models.Q(("generation_id", None), ("workspace_id", None)),
                            models.Q(("api_key_id", None), ("generation_id", None)),
                            _connector="OR",
                        ),
                        name="text_deletion_one_scope",
                    )
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="textdeletion",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'inference.textdeletion',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="bf9be9dd2ead17ca65aed1c10afbbbcc28da2693",
                    operation="INSERT",
                    pgid="pgtrigger_audit_1264c",
                    table="inference_textdeletion",
                    when="AFTER",
                ),
            ),
        ),
    ]
