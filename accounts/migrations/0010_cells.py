"""Adds cells, routing codes of organizations, and the directory of all cells."""

import django.core.validators
import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0009_cache_keeps_answers"),
    ]

    operations = [
        migrations.CreateModel(
            name="Cell",
            fields=[
                (
                    "name",
                    models.CharField(
                        help_text="The value of CELL in the cell's environment; it cannot be changed later.",
                        max_length=32,
                        primary_key=True,
                        serialize=False,
                        validators=[
                            django.core.validators.RegexValidator(
                                "\\A[a-z][a-z0-9]*(?:-[a-z0-9]+)*\\Z", "Use a-z, 0-9 and hyphens."
                            )
                        ],
                    ),
                ),
                (
                    "base_url",
                    models.URLField(
                        help_text="Where operators reach the cell's own console.",
                        max_length=255,
                        verbose_name="base URL",
                    ),
                ),
                (
                    "shard",
                    models.CharField(
                        editable=False,
                        help_text="The first two characters of the routing codes that the cell gives out.",
                        max_length=2,
                        unique=True,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("shard",),
            },
        ),
        migrations.CreateModel(
            name="CellIdentity",
            fields=[
                (
                    "id",
                    models.SmallIntegerField(
                        default=1, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("name", models.CharField(max_length=32)),
                ("shard", models.CharField(max_length=2)),
                ("fingerprint", models.CharField(db_default="", default="", max_length=64)),
                (
                    "joined_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="CellBeat",
            fields=[
                ("cell", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("beat_at", models.DateTimeField()),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="DirectoryEntry",
            fields=[
                (
                    "id",
                    models.CharField(
                        help_text="The cell and the id.",
                        max_length=80,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("cell", models.CharField(max_length=32)),
                ("organization_id", models.UUIDField()),
                ("name", models.CharField(max_length=255)),
                ("slug", models.CharField(max_length=64)),
                ("code", models.CharField(max_length=8, null=True)),
                (
                    "residence",
                    models.CharField(
                        choices=[
                            ("here", "here"),
                            ("leaving", "leaving"),
                            ("left", "left"),
                            ("arriving", "arriving"),
                        ],
                        max_length=16,
                    ),
                ),
            ],
            options={
                "verbose_name": "organization of a cell",
                "verbose_name_plural": "organizations of all cells",
                "ordering": ("name", "id"),
            },
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="organization",
            name="settings_changed",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="organization",
            name="audit",
        ),
        migrations.AddField(
            model_name="organization",
            name="code",
            field=models.CharField(
                editable=False,
                help_text="The routing code, which new keys contain so that a proxy finds the cell. It never changes; organizations of earlier releases get one with their next key.",
                max_length=8,
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="organization",
            name="other_cell",
            field=models.CharField(
                db_default="",
                default="",
                editable=False,
                help_text="The cell that a move leads to or comes from.",
                max_length=32,
            ),
        ),
        migrations.AddField(
            model_name="organization",
            name="residence",
            field=models.CharField(
                choices=[
                    ("here", "here"),
                    ("leaving", "leaving"),
                    ("left", "left"),
                    ("arriving", "arriving"),
                ],
                db_default="here",
                default="here",
                editable=False,
                max_length=16,
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="settings_changed",
                sql=config.triggers.TriggerSql(
                    condition='WHEN ((OLD."allowed_providers" IS DISTINCT FROM (NEW."allowed_providers") OR OLD."forbids_training" IS DISTINCT FROM (NEW."forbids_training") OR OLD."ignored_providers" IS DISTINCT FROM (NEW."ignored_providers") OR OLD."requires_zdr" IS DISTINCT FROM (NEW."requires_zdr") OR OLD."residence" IS DISTINCT FROM (NEW."residence")))',
                    func="NEW.routing_version := pg_current_xact_id()::text::bigint;\nRETURN NEW;",
                    hash="478e6d126354ad6122d444c9d3ee5147fdc82925",
                    operation="UPDATE",
                    pgid="pgtrigger_settings_changed_9d2c4",
                    table="accounts_organization",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="list_in_directory",
                sql=config.triggers.TriggerSql(
                    declare="DECLARE\n    here text := coalesce((SELECT name FROM accounts_cellidentity), 'home');",
                    func="IF TG_OP = 'DELETE' THEN\n    DELETE FROM accounts_directoryentry WHERE id = here || ':' || OLD.id;\n    RETURN NULL;\nEND IF;\nINSERT INTO accounts_directoryentry\n    (id, cell, organization_id, name, slug, code, residence)\nVALUES (\n    here || ':' || NEW.id, here, NEW.id, NEW.name, NEW.slug, NEW.code, NEW.residence\n)\nON CONFLICT (id) DO UPDATE SET\n    name = excluded.name, slug = excluded.slug, code = excluded.code,\n    residence = excluded.residence;\nRETURN NULL;",
                    hash="625f1d75085af0b913d0f17f35c3843f3c80dda6",
                    operation="INSERT OR DELETE",
                    pgid="pgtrigger_list_in_directory_4f151",
                    table="accounts_organization",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="update_directory",
                sql=config.triggers.TriggerSql(
                    condition='WHEN ((OLD."code" IS DISTINCT FROM (NEW."code") OR OLD."name" IS DISTINCT FROM (NEW."name") OR OLD."residence" IS DISTINCT FROM (NEW."residence") OR OLD."slug" IS DISTINCT FROM (NEW."slug")))',
                    declare="DECLARE\n    here text := coalesce((SELECT name FROM accounts_cellidentity), 'home');",
                    func="IF TG_OP = 'DELETE' THEN\n    DELETE FROM accounts_directoryentry WHERE id = here || ':' || OLD.id;\n    RETURN NULL;\nEND IF;\nINSERT INTO accounts_directoryentry\n    (id, cell, organization_id, name, slug, code, residence)\nVALUES (\n    here || ':' || NEW.id, here, NEW.id, NEW.name, NEW.slug, NEW.code, NEW.residence\n)\nON CONFLICT (id) DO UPDATE SET\n    name = excluded.name, slug = excluded.slug, code = excluded.code,\n    residence = excluded.residence;\nRETURN NULL;",
                    hash="066bedb212bbbfdeb47fa5d50652368724df2b3f",
                    operation="UPDATE",
                    pgid="pgtrigger_update_directory_5947f",
                    table="accounts_organization",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'routing_version', 'code']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'routing_version', 'code']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.organization',\n    changed ->> 'id', (changed ->> 'id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="a105d4ff225d447190c5ffa5177a818918d97ea2",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_6867b",
                    table="accounts_organization",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="cell",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("name", "home"), _negated=True),
                    models.Q(("shard", "00"), _negated=True),
                ),
                name="cell_is_not_home",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="cell",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.cell',\n    changed ->> 'name', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="7eca0a657d51f87c9a3ff6472678ff7d9cef1ef4",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_3d2cf",
                    table="accounts_cell",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="cellidentity",
            constraint=models.CheckConstraint(
                condition=models.Q(("id", 1)), name="cell_identity_is_one_row"
            ),
        ),
        migrations.AddIndex(
            model_name="directoryentry",
            index=models.Index(fields=["organization_id"], name="directory_by_organization"),
        ),
        migrations.AddIndex(
            model_name="directoryentry",
            index=models.Index(fields=["code"], name="directory_by_code"),
        ),
        migrations.AddIndex(
            model_name="directoryentry",
            index=models.Index(fields=["name", "id"], name="directory_by_name"),
        ),
    ]
