"""End users."""

import uuid

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers
from config.database.replaced import REPLACED


class Migration(migrations.Migration):
    initial = True

    replaces = [("endusers", name) for name in REPLACED["endusers"]]

    dependencies = [
        ("accounts", "0001_first_release"),
    ]

    operations = [
        migrations.CreateModel(
            name="EndUser",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "user",
                    models.CharField(db_collation="C", help_text="Case-sensitive.", max_length=512),
                ),
                ("is_active", models.BooleanField(default=True)),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="end_users",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "end user",
                "ordering": ("created_at", "id"),
                "indexes": [
                    models.Index(fields=["organization", "created_at", "id"], name="end_user_list"),
                    models.Index(fields=["created_at", "id"], name="end_user_latest"),
                    models.Index(fields=["user", "id"], name="end_user_by_beginning"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "user"), name="end_user_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("user", ""), _negated=True), name="end_user_not_empty"
                    ),
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="enduser",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'endusers.enduser',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="7274ab36c658eac039de9c367d0dcc77bb22cb38",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_e0359",
                    table="endusers_enduser",
                    when="AFTER",
                ),
            ),
        ),
    ]
