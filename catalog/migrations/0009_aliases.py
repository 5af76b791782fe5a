"""Aliases: other names for models."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0006_announce_versions"),
        ("catalog", "0008_time_limits"),
    ]

    operations = [
        migrations.CreateModel(
            name="ModelAlias",
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
                    "name",
                    models.CharField(
                        help_text="The name that callers send. One * stands for any text.",
                        max_length=255,
                    ),
                ),
                (
                    "targets",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        help_text="Names of models, separated by commas. The first one is tried first.",
                        size=None,
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: an alias of the operator, which applies to all organizations.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="model_aliases",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "alias",
                "verbose_name_plural": "aliases",
                "ordering": ("name", "id"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "name"),
                        name="model_alias_unique_in_organization",
                        violation_error_message="There is an alias of this name already.",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("organization", None)),
                        fields=("name",),
                        name="model_alias_unique_of_operator",
                        violation_error_message="There is an alias of this name already.",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("targets__len__gte", 1), ("targets__len__lte", 10)),
                        name="model_alias_has_targets",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("name", ""), _negated=True), name="model_alias_has_name"
                    ),
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="modelalias",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF COALESCE(NEW.organization_id, OLD.organization_id) IS NOT NULL THEN\nUPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;\nEND IF;\nIF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.id, OLD.id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="c471c8da3ae4198a48193a696f480f34ac2551f1",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_5a9b8",
                    table="catalog_modelalias",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="modelalias",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'catalog.modelalias',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="95e91bb9e8b6ca2612d0f4f9574805ba2e4417a0",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_d9bb7",
                    table="catalog_modelalias",
                    when="AFTER",
                ),
            ),
        ),
    ]
