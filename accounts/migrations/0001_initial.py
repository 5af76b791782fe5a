"""Organizations, workspaces, members, keys, credentials and guardrails."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    initial = True

    # The audit triggers write into its audit log.
    dependencies = [("config", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="ApiKey",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("name", models.CharField(max_length=255)),
                ("label", models.CharField(editable=False, max_length=32)),
                (
                    "digest",
                    models.CharField(
                        editable=False,
                        help_text="HMAC-SHA256 of the key.",
                        max_length=64,
                        unique=True,
                    ),
                ),
                ("is_management", models.BooleanField(default=False)),
                ("disabled", models.BooleanField(default=False)),
                ("expires_at", models.DateTimeField(blank=True, null=True)),
                (
                    "limit_nano",
                    models.BigIntegerField(
                        editable=False,
                        help_text="The most that the key may spend, in nano-USD; empty for no limit.",
                        null=True,
                    ),
                ),
                (
                    "limit_reset",
                    models.CharField(
                        choices=[("daily", "daily"), ("weekly", "weekly"), ("monthly", "monthly")],
                        editable=False,
                        max_length=16,
                        null=True,
                    ),
                ),
                (
                    "include_byok_in_limit",
                    models.BooleanField(db_default=False, default=False, editable=False),
                ),
                (
                    "external_user",
                    models.CharField(
                        db_collation="C",
                        editable=False,
                        help_text="The end user that the key belongs to.",
                        max_length=512,
                        null=True,
                    ),
                ),
                ("deleted_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "verbose_name": "API key",
                "ordering": ("-created_at",),
            },
        ),
        migrations.CreateModel(
            name="Guardrail",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("name", models.CharField(max_length=255)),
                ("description", models.TextField(blank=True, null=True)),
                (
                    "allowed_models",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "ignored_models",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "allowed_providers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "ignored_providers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "allowed_data_regions",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[("global", "global"), ("europe", "europe"), ("us", "us")],
                            max_length=16,
                        ),
                        blank=True,
                        null=True,
                        size=None,
                    ),
                ),
                ("enforce_zdr", models.BooleanField(blank=True, null=True)),
                ("enforce_zdr_anthropic", models.BooleanField(blank=True, null=True)),
                ("enforce_zdr_google", models.BooleanField(blank=True, null=True)),
                ("enforce_zdr_openai", models.BooleanField(blank=True, null=True)),
                ("enforce_zdr_xai", models.BooleanField(blank=True, null=True)),
                ("enforce_zdr_other", models.BooleanField(blank=True, null=True)),
                ("allow_safety_retention_google", models.BooleanField(blank=True, null=True)),
                ("allow_safety_retention_other", models.BooleanField(blank=True, null=True)),
                ("enable_free_model_publication", models.BooleanField(blank=True, null=True)),
                ("enable_free_model_training", models.BooleanField(blank=True, null=True)),
                ("enable_paid_model_training", models.BooleanField(blank=True, null=True)),
                ("content_filters", models.JSONField(blank=True, null=True)),
                ("content_filter_builtins", models.JSONField(blank=True, null=True)),
                (
                    "limit_nano",
                    models.BigIntegerField(blank=True, help_text="In nano-USD.", null=True),
                ),
                (
                    "reset_interval",
                    models.CharField(
                        blank=True,
                        choices=[("daily", "daily"), ("weekly", "weekly"), ("monthly", "monthly")],
                        max_length=16,
                        null=True,
                    ),
                ),
                ("include_byok_in_budgets", models.BooleanField(default=False)),
            ],
            options={
                "ordering": ("organization", "created_at", "id"),
            },
        ),
        migrations.CreateModel(
            name="Member",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("email", models.EmailField(max_length=254)),
                ("first_name", models.CharField(blank=True, max_length=255, null=True)),
                ("last_name", models.CharField(blank=True, max_length=255, null=True)),
                (
                    "role",
                    models.CharField(
                        choices=[("admin", "admin"), ("member", "member")],
                        default="member",
                        max_length=16,
                    ),
                ),
            ],
            options={
                "ordering": ("organization", "email"),
            },
        ),
        migrations.CreateModel(
            name="Organization",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("name", models.CharField(max_length=255)),
                ("slug", models.SlugField(max_length=64, unique=True)),
                (
                    "endpoint_limit",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="At most this many private endpoints; empty for the service's default.",
                        null=True,
                    ),
                ),
                (
                    "is_filtered_model_catalog_enabled",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Model lists show each key only the models that it may use.",
                        verbose_name="filtered catalogue",
                    ),
                ),
                (
                    "allowed_providers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        help_text="Slugs of the only providers that may be used; empty: any.",
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "ignored_providers",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        help_text="Slugs of providers that are never used.",
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "requires_zdr",
                    models.BooleanField(
                        db_default=False, default=False, verbose_name="zero data retention only"
                    ),
                ),
                (
                    "forbids_training",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Endpoints whose provider trains on prompts are never used.",
                        verbose_name="no training on prompts",
                    ),
                ),
                (
                    "routing_version",
                    models.BigIntegerField(
                        default=0,
                        editable=False,
                        help_text="Triggers raise it when the endpoints or rules of the organization change.",
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="Workspace",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("name", models.CharField(max_length=255)),
                ("slug", models.SlugField(max_length=64)),
                ("is_default", models.BooleanField(default=False)),
                ("description", models.TextField(blank=True, null=True)),
                ("created_by", models.CharField(editable=False, max_length=255, null=True)),
                ("default_text_model", models.CharField(blank=True, max_length=255, null=True)),
                ("default_image_model", models.CharField(blank=True, max_length=255, null=True)),
                (
                    "default_provider_sort",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("price", "price"),
                            ("throughput", "throughput"),
                            ("latency", "latency"),
                            ("exacto", "exacto"),
                        ],
                        max_length=16,
                        null=True,
                    ),
                ),
                (
                    "disabled_server_tools",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "io_logging_api_key_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), blank=True, null=True, size=None
                    ),
                ),
                (
                    "io_logging_sampling_rate",
                    models.DecimalField(db_default=1, decimal_places=4, default=1, max_digits=5),
                ),
                (
                    "is_data_discount_logging_enabled",
                    models.BooleanField(db_default=False, default=False),
                ),
                (
                    "is_observability_broadcast_enabled",
                    models.BooleanField(db_default=False, default=False),
                ),
                (
                    "is_observability_io_logging_enabled",
                    models.BooleanField(db_default=False, default=False),
                ),
                ("include_byok_in_budgets", models.BooleanField(db_default=False, default=False)),
                ("deleted_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "ordering": ("organization", "name"),
            },
        ),
        migrations.CreateModel(
            name="WorkspaceBudget",
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
                    "interval",
                    models.CharField(
                        choices=[
                            ("daily", "daily"),
                            ("weekly", "weekly"),
                            ("monthly", "monthly"),
                            ("lifetime", "lifetime"),
                        ],
                        max_length=16,
                    ),
                ),
                ("limit_nano", models.BigIntegerField(help_text="In nano-USD.")),
            ],
            options={
                "ordering": ("workspace", "interval"),
            },
        ),
        migrations.CreateModel(
            name="WorkspaceMember",
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
                    "role",
                    models.CharField(
                        choices=[("admin", "admin"), ("member", "member")], max_length=16
                    ),
                ),
            ],
            options={
                "ordering": ("created_at", "id"),
            },
        ),
        migrations.CreateModel(
            name="KeyAssignment",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("assigned_by", models.CharField(editable=False, max_length=255, null=True)),
                (
                    "api_key",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="guardrail_assignment",
                        to="accounts.apikey",
                    ),
                ),
                (
                    "guardrail",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="key_assignments",
                        to="accounts.guardrail",
                    ),
                ),
            ],
            options={
                "ordering": ("created_at", "id"),
            },
        ),
        migrations.AddField(
            model_name="apikey",
            name="creator",
            field=models.ForeignKey(
                blank=True,
                db_index=False,
                help_text="The member who created the key; that member's guardrail applies to it.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="api_keys",
                to="accounts.member",
            ),
        ),
        migrations.CreateModel(
            name="MemberAssignment",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("assigned_by", models.CharField(editable=False, max_length=255, null=True)),
                (
                    "guardrail",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="member_assignments",
                        to="accounts.guardrail",
                    ),
                ),
                (
                    "member",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="guardrail_assignment",
                        to="accounts.member",
                    ),
                ),
            ],
            options={
                "ordering": ("created_at", "id"),
            },
        ),
        migrations.AddField(
            model_name="member",
            name="organization",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="members",
                to="accounts.organization",
            ),
        ),
        migrations.AddField(
            model_name="guardrail",
            name="organization",
            field=models.ForeignKey(
                editable=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="guardrails",
                to="accounts.organization",
            ),
        ),
        migrations.CreateModel(
            name="ByokCredential",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("provider_slug", models.CharField(max_length=255)),
                ("name", models.CharField(blank=True, max_length=255, null=True)),
                ("label", models.CharField(editable=False, max_length=32)),
                ("sealed", models.BinaryField()),
                ("version", models.PositiveIntegerField(default=1, editable=False)),
                ("sort_order", models.IntegerField(default=0)),
                ("disabled", models.BooleanField(default=False)),
                ("is_fallback", models.BooleanField(default=False)),
                ("is_required", models.BooleanField(default=False)),
                ("is_byok_only", models.BooleanField(default=False)),
                (
                    "allowed_models",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "allowed_api_key_hashes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64), blank=True, null=True, size=None
                    ),
                ),
                (
                    "allowed_user_ids",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "allowed_hosts",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=253),
                        blank=True,
                        help_text="Hosts that this credential may be sent to; empty: all that the policy allows.",
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "declared_region",
                    models.CharField(
                        blank=True,
                        choices=[("global", "global"), ("europe", "europe"), ("us", "us")],
                        max_length=16,
                        null=True,
                    ),
                ),
                ("declared_zdr", models.BooleanField(blank=True, null=True)),
                ("deleted_at", models.DateTimeField(blank=True, editable=False, null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="byok_credentials",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "BYOK credential",
                "ordering": ("organization", "provider_slug", "sort_order"),
            },
        ),
        migrations.AddField(
            model_name="apikey",
            name="organization",
            field=models.ForeignKey(
                editable=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="api_keys",
                to="accounts.organization",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="settings_changed",
                sql=config.triggers.TriggerSql(
                    condition='WHEN ((OLD."allowed_providers" IS DISTINCT FROM (NEW."allowed_providers") OR OLD."forbids_training" IS DISTINCT FROM (NEW."forbids_training") OR OLD."ignored_providers" IS DISTINCT FROM (NEW."ignored_providers") OR OLD."requires_zdr" IS DISTINCT FROM (NEW."requires_zdr")))',
                    func="NEW.routing_version := pg_current_xact_id()::text::bigint;\nRETURN NEW;",
                    hash="14221238696202a520e7fc8f46b523332778c675",
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
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'routing_version']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'routing_version']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.organization',\n    changed ->> 'id', (changed ->> 'id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="733bae590a975a3a325b62c5f71781b9b9cf2975",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_6867b",
                    table="accounts_organization",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddField(
            model_name="workspace",
            name="organization",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="workspaces",
                to="accounts.organization",
            ),
        ),
        migrations.AddField(
            model_name="guardrail",
            name="workspace",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="guardrails",
                to="accounts.workspace",
            ),
        ),
        migrations.AddField(
            model_name="byokcredential",
            name="workspace",
            field=models.ForeignKey(
                blank=True,
                help_text="Empty: usable in every workspace.",
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="byok_credentials",
                to="accounts.workspace",
            ),
        ),
        migrations.AddField(
            model_name="apikey",
            name="workspace",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="api_keys",
                to="accounts.workspace",
            ),
        ),
        migrations.AddField(
            model_name="workspacebudget",
            name="workspace",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="budgets",
                to="accounts.workspace",
            ),
        ),
        migrations.AddField(
            model_name="workspacemember",
            name="member",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="memberships",
                to="accounts.member",
            ),
        ),
        migrations.AddField(
            model_name="workspacemember",
            name="workspace",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE,
                related_name="memberships",
                to="accounts.workspace",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="keyassignment",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = (SELECT organization_id FROM accounts_guardrail WHERE id = COALESCE(NEW.guardrail_id, OLD.guardrail_id))\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="154fd269ebc45b1f77d3b0bbf7029867f1c91666",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_878d4",
                    table="accounts_keyassignment",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="keyassignment",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.keyassignment',\n    changed ->> 'id', (SELECT organization_id FROM accounts_guardrail WHERE id = (changed ->> 'guardrail_id')::uuid), was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="9cfcc508eff4e22bcf04b19d385fced3c3c97c68",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_acf93",
                    table="accounts_keyassignment",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="memberassignment",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = (SELECT organization_id FROM accounts_guardrail WHERE id = COALESCE(NEW.guardrail_id, OLD.guardrail_id))\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="48ce6932c1746f21d0fbd3dedbf6f892b737fb09",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_6beee",
                    table="accounts_memberassignment",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="memberassignment",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.memberassignment',\n    changed ->> 'id', (SELECT organization_id FROM accounts_guardrail WHERE id = (changed ->> 'guardrail_id')::uuid), was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="d5b1eba7e96512bc2638e83d1bc7af40ec0642a4",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_a6940",
                    table="accounts_memberassignment",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="member",
            constraint=models.UniqueConstraint(
                fields=("organization", "email"), name="member_email_unique"
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="member",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.member',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="73e1e105d45a531df3a9f538c018e7fe94fced63",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_a2def",
                    table="accounts_member",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="workspace",
            constraint=models.UniqueConstraint(
                fields=("organization", "slug"), name="workspace_slug_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="workspace",
            constraint=models.UniqueConstraint(
                condition=models.Q(("is_default", True)),
                fields=("organization",),
                name="workspace_one_default",
            ),
        ),
        migrations.AddConstraint(
            model_name="workspace",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("io_logging_sampling_rate__gt", 0), ("io_logging_sampling_rate__lte", 1)
                ),
                name="workspace_sampling_rate",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="workspace",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="e5d1f1d716f907d39b445deb520adaf9dc12f824",
                    operation="INSERT OR UPDATE",
                    pgid="pgtrigger_version_bump_4afe4",
                    table="accounts_workspace",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="workspace",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.workspace',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="6f3d55412e0a5fe6d46a0387929783d27c55d7da",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_35010",
                    table="accounts_workspace",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrail",
            constraint=models.CheckConstraint(
                condition=models.Q(("limit_nano", None), ("limit_nano__gte", 0), _connector="OR"),
                name="guardrail_limit_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="guardrail",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("limit_nano", None), ("reset_interval", None)),
                    models.Q(("limit_nano__isnull", False), ("reset_interval__isnull", False)),
                    _connector="OR",
                ),
                name="guardrail_budget_whole",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="guardrail",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="e48223d9cf2b8841ae467917915df102df8e4b0f",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_e4918",
                    table="accounts_guardrail",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="guardrail",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.guardrail',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="50d46d4993e2905125588a248c019761360cf90f",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_df762",
                    table="accounts_guardrail",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="byokcredential",
            index=models.Index(fields=["organization", "provider_slug"], name="byok_lookup"),
        ),
        migrations.AddConstraint(
            model_name="byokcredential",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("is_fallback", False), ("is_byok_only", False), _connector="OR"
                ),
                name="byok_fallback_is_not_byok_only",
            ),
        ),
        migrations.AddConstraint(
            model_name="byokcredential",
            constraint=models.CheckConstraint(
                condition=models.Q(("deleted_at", None), ("sealed", b""), _connector="OR"),
                name="byok_deleted_is_wiped",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="byokcredential",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="60852ed9e5cf8e3445642bc6b82de7d6999a418f",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_5a898",
                    table="accounts_byokcredential",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="byokcredential",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['sealed']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['sealed']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.byokcredential',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="7ff18f7e478e5b03eb59f710c8e7da50371ab00a",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_c07ec",
                    table="accounts_byokcredential",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="apikey",
            constraint=models.CheckConstraint(
                condition=models.Q(("limit_nano", None), ("limit_nano__gte", 0), _connector="OR"),
                name="api_key_limit_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="apikey",
            constraint=models.CheckConstraint(
                condition=models.Q(("deleted_at", None), ("disabled", True), _connector="OR"),
                name="api_key_deleted_is_disabled",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="apikey",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['digest']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['digest']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.apikey',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="78cac746e0973e283012195f40a30e8dd9f535a1",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_b6506",
                    table="accounts_apikey",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="workspacebudget",
            constraint=models.UniqueConstraint(
                fields=("workspace", "interval"), name="workspace_budget_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="workspacebudget",
            constraint=models.CheckConstraint(
                condition=models.Q(("limit_nano__gt", 0)), name="workspace_budget_positive"
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="workspacebudget",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = (SELECT organization_id FROM accounts_workspace WHERE id = COALESCE(NEW.workspace_id, OLD.workspace_id))\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="6a02867ddee6f21f8e0b89b1d76747534e9622b3",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_4e2d3",
                    table="accounts_workspacebudget",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="workspacebudget",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.workspacebudget',\n    changed ->> 'id', (SELECT organization_id FROM accounts_workspace WHERE id = (changed ->> 'workspace_id')::uuid), was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="386660b514037b5a3d5cf213ffa0a3a09821dbd3",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_55457",
                    table="accounts_workspacebudget",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="workspacemember",
            constraint=models.UniqueConstraint(
                fields=("workspace", "member"), name="workspace_member_unique"
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="workspacemember",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.workspacemember',\n    changed ->> 'id', (SELECT organization_id FROM accounts_workspace WHERE id = (changed ->> 'workspace_id')::uuid), was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="9bfc68d759b330d2502559336cb71718b99cae01",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_d0e31",
                    table="accounts_workspacemember",
                    when="AFTER",
                ),
            ),
        ),
    ]
