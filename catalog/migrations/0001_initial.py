"""Providers, models, endpoints and prices."""

import uuid

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers

# Lets a batch of requests keep the catalogue unchanged until it has begun, and returns its version.
# The lock is an advisory lock: its queue is fair, while sharers of a row lock would overtake a
# waiting change again and again. The version is read after the lock, not from the snapshot of the
# statement, which may be older. `catalog.models.CatalogVersionBump` takes the lock exclusively.
HOLD_CATALOG = """
CREATE FUNCTION causeway_hold_catalog() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(6024917533);
    RETURN COALESCE((SELECT version FROM catalog_catalogversion), 0);
END
$$;
"""


class Migration(migrations.Migration):
    initial = True

    # The audit triggers write into its audit log.
    dependencies = [("config", "0001_initial")]

    operations = [
        migrations.CreateModel(
            name="LanguageModel",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("slug", models.CharField(max_length=255, unique=True)),
                ("canonical_slug", models.CharField(max_length=255, unique=True)),
                ("name", models.CharField(max_length=255)),
                ("created", models.BigIntegerField(help_text="Publication time, in Unix seconds.")),
                ("description", models.TextField(blank=True)),
                ("context_length", models.PositiveBigIntegerField(blank=True, null=True)),
                (
                    "input_modalities",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=32), size=None
                    ),
                ),
                (
                    "output_modalities",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=32), size=None
                    ),
                ),
                ("modality", models.CharField(blank=True, max_length=255, null=True)),
                ("tokenizer", models.CharField(blank=True, max_length=64, null=True)),
                ("instruct_type", models.CharField(blank=True, max_length=64, null=True)),
                (
                    "supported_parameters",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                ("default_parameters", models.JSONField(blank=True, null=True)),
                ("per_request_limits", models.JSONField(blank=True, null=True)),
                (
                    "supported_voices",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=255),
                        blank=True,
                        null=True,
                        size=None,
                    ),
                ),
                ("expiration_date", models.DateField(blank=True, null=True)),
                ("knowledge_cutoff", models.DateField(blank=True, null=True)),
                (
                    "is_listed",
                    models.BooleanField(
                        default=True, help_text="Off: the model was removed from the catalogue."
                    ),
                ),
            ],
            options={
                "verbose_name": "model",
                "ordering": ("slug",),
            },
        ),
        migrations.CreateModel(
            name="ModelEndpoint",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("upstream_model_id", models.CharField(max_length=255)),
                ("region", models.CharField(default="global", max_length=16)),
                ("context_length", models.PositiveBigIntegerField(blank=True, null=True)),
                ("max_completion_tokens", models.PositiveBigIntegerField(blank=True, null=True)),
                ("quantization", models.CharField(blank=True, max_length=16, null=True)),
                ("is_moderated", models.BooleanField(default=False)),
                ("zdr", models.BooleanField(default=False, verbose_name="zero data retention")),
                (
                    "supported_parameters",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "is_listed",
                    models.BooleanField(
                        default=True, help_text="Off: the endpoint was removed from the catalogue."
                    ),
                ),
            ],
            options={
                "ordering": ("model", "provider"),
            },
        ),
        migrations.CreateModel(
            name="PriceVersion",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("subject_id", models.UUIDField(db_index=True, editable=False)),
                (
                    "prompt",
                    models.DecimalField(
                        decimal_places=30,
                        max_digits=36,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "completion",
                    models.DecimalField(
                        decimal_places=30,
                        max_digits=36,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "image",
                    models.DecimalField(
                        decimal_places=30,
                        default=0,
                        max_digits=36,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "request",
                    models.DecimalField(
                        decimal_places=30,
                        default=0,
                        max_digits=36,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "cache_read",
                    models.DecimalField(
                        blank=True,
                        decimal_places=30,
                        help_text="Empty: cached tokens cost as much as prompt tokens.",
                        max_digits=36,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "cache_write",
                    models.DecimalField(
                        blank=True,
                        decimal_places=30,
                        max_digits=36,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                (
                    "image_output",
                    models.DecimalField(
                        blank=True,
                        decimal_places=30,
                        help_text="Empty: image tokens cost as much as completion tokens.",
                        max_digits=36,
                        null=True,
                        validators=[django.core.validators.MinValueValidator(0)],
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="Provider",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("slug", models.CharField(max_length=255, unique=True)),
                ("name", models.CharField(max_length=255)),
                (
                    "dialect",
                    models.CharField(
                        choices=[
                            ("openai", "OpenAI"),
                            ("anthropic", "Anthropic Messages"),
                            ("gemini", "Gemini generateContent"),
                            ("azure", "Azure OpenAI"),
                            ("bedrock", "Amazon Bedrock Converse"),
                            ("vertex", "Google Vertex AI"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "base_url",
                    models.CharField(
                        blank=True,
                        help_text="Empty when the URL comes from the credential.",
                        max_length=2048,
                        null=True,
                    ),
                ),
                ("trains_on_prompts", models.BooleanField(default=False)),
                ("retains_prompts", models.BooleanField(default=False)),
                (
                    "datacenters",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=2),
                        blank=True,
                        default=list,
                        size=None,
                    ),
                ),
                ("headquarters", models.CharField(blank=True, max_length=2, null=True)),
                ("privacy_policy_url", models.URLField(blank=True, max_length=2048, null=True)),
                ("terms_of_service_url", models.URLField(blank=True, max_length=2048, null=True)),
                ("status_page_url", models.URLField(blank=True, max_length=2048, null=True)),
                (
                    "is_listed",
                    models.BooleanField(
                        default=True, help_text="Off: the provider was removed from the catalogue."
                    ),
                ),
                ("sealed_credential", models.BinaryField(null=True)),
                ("credential_label", models.CharField(default="", editable=False, max_length=32)),
            ],
            options={
                "ordering": ("slug",),
            },
        ),
        migrations.CreateModel(
            name="CatalogVersion",
            fields=[
                ("id", models.SmallIntegerField(default=1, primary_key=True, serialize=False)),
                ("version", models.BigIntegerField(default=0)),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("id", 1)), name="catalog_version_one_row"
                    )
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="languagemodel",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\nEND IF;\nRETURN NULL;",
                    hash="573aaab33358dde11526adc2b6b752807271ae60",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_47477",
                    table="catalog_languagemodel",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="languagemodel",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'catalog.languagemodel',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="fdb7503ce45250d1237dc227e81bc55c2b8e5528",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_e0b90",
                    table="catalog_languagemodel",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddField(
            model_name="modelendpoint",
            name="model",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="endpoints",
                to="catalog.languagemodel",
            ),
        ),
        migrations.AddConstraint(
            model_name="priceversion",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("completion__gte", 0),
                    ("image__gte", 0),
                    ("prompt__gte", 0),
                    ("request__gte", 0),
                    models.Q(("cache_read", None), ("cache_read__gte", 0), _connector="OR"),
                    models.Q(("cache_write", None), ("cache_write__gte", 0), _connector="OR"),
                    models.Q(("image_output", None), ("image_output__gte", 0), _connector="OR"),
                ),
                name="price_not_negative",
            ),
        ),
        migrations.AddField(
            model_name="modelendpoint",
            name="price",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="catalog.priceversion",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="priceversion",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="RAISE EXCEPTION 'catalog_priceversion is append-only' USING ERRCODE = 'restrict_violation';",
                    hash="e927880d677732f79e77d4dcf022bd43d4fce241",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_43d50",
                    table="catalog_priceversion",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="priceversion",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'catalog.priceversion',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="31f082edd679ae0a96b50b3d62ebbea348188e1d",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_c566c",
                    table="catalog_priceversion",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddField(
            model_name="modelendpoint",
            name="provider",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="endpoints",
                to="catalog.provider",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="provider",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\nEND IF;\nRETURN NULL;",
                    hash="7abd1818943a88bd08d5a0bb0b05ffb44af6916b",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_458a0",
                    table="catalog_provider",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="provider",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['sealed_credential']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['sealed_credential']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'catalog.provider',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="8830236e8aa46cc332521abffddacc176edcec3e",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_d7187",
                    table="catalog_provider",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="modelendpoint",
            constraint=models.UniqueConstraint(
                fields=("model", "provider", "upstream_model_id", "region"),
                name="model_endpoint_unique",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="modelendpoint",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\nEND IF;\nRETURN NULL;",
                    hash="70476913fc090932134ef04d28b1953ff42cff4b",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_77f82",
                    table="catalog_modelendpoint",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="modelendpoint",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'catalog.modelendpoint',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="6afe45f477beff2d2869d38ec6cd9435630fbbde",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_779ad",
                    table="catalog_modelendpoint",
                    when="AFTER",
                ),
            ),
        ),
        migrations.RunSQL(HOLD_CATALOG, "DROP FUNCTION causeway_hold_catalog()"),
    ]
