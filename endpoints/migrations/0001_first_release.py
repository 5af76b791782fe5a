"""Private endpoints, their validations and attestations."""

import uuid

import django.contrib.postgres.fields
import django.db.models.deletion
import django.db.models.functions.text
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers
from config.database.replaced import REPLACED
from config.partitions.creation import divide
from config.partitions.declarations import Partitioning
from config.partitions.spans import QUARTER

VALIDATIONS = Partitioning("endpoints_validation", "created_at", QUARTER)


def divide_validation(apps, schema_editor):
    divide(VALIDATIONS, ("id", "created_at"))


class Migration(migrations.Migration):
    initial = True

    replaces = [("endpoints", name) for name in REPLACED["endpoints"]]

    dependencies = [
        ("accounts", "0001_first_release"),
        ("catalog", "0001_first_release"),
    ]

    operations = [
        migrations.CreateModel(
            name="ValidationSlot",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("number", models.PositiveSmallIntegerField()),
                ("until", models.DateTimeField()),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "number"), name="validation_slot_number"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("number__lt", 2)), name="validation_slot_count"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Attestation",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("declared_zdr", models.BooleanField(null=True, verbose_name="declared ZDR")),
                (
                    "declared_region",
                    models.CharField(
                        choices=[("global", "global"), ("europe", "europe"), ("us", "us")],
                        max_length=16,
                        null=True,
                    ),
                ),
                ("stated_at", models.DateTimeField(auto_now_add=True)),
                ("stated_by", models.CharField(default="", max_length=255)),
                ("request_id", models.CharField(default="", max_length=64)),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="Validation",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("credential_version", models.PositiveIntegerField(null=True)),
                ("configuration", models.CharField(max_length=64)),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("passed", "passed"),
                            ("failed", "failed"),
                            ("unreachable", "unreachable"),
                            ("timed_out", "timed out"),
                            ("broken", "broken"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "purpose",
                    models.CharField(
                        choices=[("activation", "activation"), ("watch", "watch")],
                        default="activation",
                        max_length=16,
                    ),
                ),
                ("checks", models.JSONField()),
                (
                    "evidence",
                    models.JSONField(
                        default=dict,
                        help_text="Properties of the deployment that later validations compare.",
                    ),
                ),
                (
                    "changes",
                    models.JSONField(
                        default=list, help_text="Evidence that differs from the activation's."
                    ),
                ),
                (
                    "cost_nano",
                    models.BigIntegerField(
                        default=0,
                        help_text="Cost of the test calls at the endpoint's price, in nano-USD.",
                    ),
                ),
                ("duration_ms", models.PositiveIntegerField(default=0)),
                (
                    "credential",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="accounts.byokcredential",
                    ),
                ),
            ],
            options={
                "ordering": ("-created_at",),
            },
        ),
        migrations.RunPython(divide_validation, migrations.RunPython.noop),
        migrations.CreateModel(
            name="PrivateProvider",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("name", models.CharField(max_length=64)),
                ("slug", models.CharField(max_length=64)),
                ("display_name", models.CharField(max_length=255)),
                ("base_url", models.CharField(blank=True, max_length=2048, null=True)),
                (
                    "is_keyless",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Its servers answer without a credential, and are sent none.",
                        verbose_name="takes no key",
                    ),
                ),
                ("deleted_at", models.DateTimeField(editable=False, null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="private_providers",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "private provider",
                "ordering": ("created_at", "id"),
                "constraints": [
                    models.UniqueConstraint(
                        models.F("organization"),
                        django.db.models.functions.text.Lower("slug"),
                        condition=models.Q(("deleted_at", None)),
                        name="private_provider_slug_unique",
                    ),
                    models.UniqueConstraint(
                        models.F("organization"),
                        django.db.models.functions.text.Lower("name"),
                        condition=models.Q(("deleted_at", None)),
                        name="private_provider_name_unique",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="PrivateEndpoint",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("idempotency_key", models.CharField(editable=False, max_length=255, null=True)),
                ("request_fingerprint", models.CharField(editable=False, max_length=64)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("draft", "draft"),
                            ("active", "active"),
                            ("disabled", "disabled"),
                        ],
                        default="draft",
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("provider_name", models.CharField(editable=False, max_length=255)),
                ("upstream_model_id", models.CharField(max_length=255)),
                ("base_url", models.CharField(blank=True, max_length=2048, null=True)),
                (
                    "declared_region",
                    models.CharField(
                        blank=True,
                        choices=[("global", "global"), ("europe", "europe"), ("us", "us")],
                        max_length=16,
                        null=True,
                    ),
                ),
                (
                    "declared_zdr",
                    models.BooleanField(blank=True, null=True, verbose_name="declared ZDR"),
                ),
                ("activated_at", models.DateTimeField(editable=False, null=True)),
                ("activated_by", models.CharField(default="", editable=False, max_length=255)),
                ("disabled_at", models.DateTimeField(editable=False, null=True)),
                ("disabled_by", models.CharField(default="", editable=False, max_length=255)),
                ("disabled_reason", models.CharField(default="", editable=False, max_length=255)),
                ("deleted_at", models.DateTimeField(editable=False, null=True)),
                ("deleted_by", models.CharField(default="", editable=False, max_length=255)),
                (
                    "watched_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="When the drift watch last validated the deployment.",
                        null=True,
                    ),
                ),
                (
                    "drifted_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="When the watch first found a difference.",
                        null=True,
                    ),
                ),
                (
                    "attestation",
                    models.ForeignKey(
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="endpoints.attestation",
                    ),
                ),
                (
                    "model",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="private_endpoints",
                        to="catalog.languagemodel",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="private_endpoints",
                        to="accounts.organization",
                    ),
                ),
                (
                    "price",
                    models.ForeignKey(
                        editable=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="catalog.priceversion",
                    ),
                ),
                (
                    "provider",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="catalog.provider",
                    ),
                ),
                (
                    "validation",
                    models.ForeignKey(
                        blank=True,
                        db_constraint=False,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="endpoints.validation",
                    ),
                ),
                (
                    "connect_timeout",
                    models.PositiveIntegerField(
                        blank=True, help_text="Seconds for name, connection and TLS.", null=True
                    ),
                ),
                (
                    "first_event_timeout",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Seconds until the first event of a stream.",
                        null=True,
                    ),
                ),
                (
                    "headers_timeout",
                    models.PositiveIntegerField(
                        blank=True, help_text="Seconds until the headers of a stream.", null=True
                    ),
                ),
                (
                    "idle_timeout",
                    models.PositiveIntegerField(
                        blank=True, help_text="Seconds of silence within a stream.", null=True
                    ),
                ),
                (
                    "total_timeout",
                    models.PositiveIntegerField(
                        blank=True, help_text="Seconds for a whole answer.", null=True
                    ),
                ),
                (
                    "fallback",
                    models.CharField(
                        blank=True,
                        choices=[("none", "none"), ("listed", "listed"), ("any", "any")],
                        help_text="none: requests for a model with a private endpoint never go to public ones. listed: only to providers that the request names in provider.order or provider.only. any: to all. Empty inherits; the strictest level that is set decides, and listed where none is set.",
                        max_length=16,
                        null=True,
                        verbose_name="fallback from private models",
                    ),
                ),
                (
                    "released_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="When its owner let requests for the model go to public endpoints again.",
                        null=True,
                    ),
                ),
                (
                    "released_by",
                    models.CharField(db_default="", default="", editable=False, max_length=255),
                ),
                (
                    "declared_parameters",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        db_default=[],
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "settings",
                    models.JSONField(blank=True, db_default={}, default=dict, editable=False),
                ),
                (
                    "tested_parameters",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        db_default=[],
                        default=list,
                        editable=False,
                        size=None,
                    ),
                ),
                (
                    "private_provider",
                    models.ForeignKey(
                        db_index=False,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="endpoints",
                        to="endpoints.privateprovider",
                    ),
                ),
            ],
            options={
                "verbose_name": "private endpoint",
                "ordering": ("created_at", "id"),
                "indexes": [
                    models.Index(
                        condition=models.Q(("deleted_at", None)),
                        fields=["organization", "created_at"],
                        name="private_endpoint_list",
                    ),
                    models.Index(
                        condition=models.Q(("deleted_at", None)),
                        fields=["created_at", "id"],
                        name="private_endpoint_latest",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "idempotency_key"),
                        name="private_endpoint_idempotency",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("activated_at", None), ("status", "draft")),
                            models.Q(
                                ("activated_at__isnull", False),
                                ("status__in", ("active", "disabled")),
                            ),
                            _connector="OR",
                        ),
                        name="private_endpoint_activation_stamp",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("connect_timeout__isnull", True),
                                ("connect_timeout__range", (1, 86400)),
                                _connector="OR",
                            ),
                            models.Q(
                                ("headers_timeout__isnull", True),
                                ("headers_timeout__range", (1, 86400)),
                                _connector="OR",
                            ),
                            models.Q(
                                ("first_event_timeout__isnull", True),
                                ("first_event_timeout__range", (1, 86400)),
                                _connector="OR",
                            ),
                            models.Q(
                                ("idle_timeout__isnull", True),
                                ("idle_timeout__range", (1, 86400)),
                                _connector="OR",
                            ),
                            models.Q(
                                ("total_timeout__isnull", True),
                                ("total_timeout__range", (1, 86400)),
                                _connector="OR",
                            ),
                        ),
                        name="private_endpoint_times",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("released_at", None),
                            models.Q(
                                ("activated_at__isnull", False), ("deleted_at__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="private_endpoint_released_after_deletion",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("private_provider__isnull", False), ("provider", None)),
                            models.Q(("private_provider", None), ("provider__isnull", False)),
                            _connector="OR",
                        ),
                        name="private_endpoint_has_one_provider",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="OwnModel",
            fields=[],
            options={
                "verbose_name": "own model",
                "ordering": ("slug",),
                "proxy": True,
                "indexes": [],
                "constraints": [],
            },
            bases=("catalog.languagemodel",),
        ),
        migrations.AddField(
            model_name="validationslot",
            name="endpoint",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="activations",
                to="endpoints.privateendpoint",
            ),
        ),
        migrations.AddField(
            model_name="Attestation",
            name="endpoint",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="attestations",
                to="endpoints.privateendpoint",
            ),
        ),
        migrations.AddField(
            model_name="Validation",
            name="endpoint",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="validations",
                to="endpoints.privateendpoint",
            ),
        ),
        migrations.AddField(
            model_name="Validation",
            name="workspace",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, to="accounts.workspace"
            ),
        ),
        migrations.AddField(
            model_name="Validation",
            name="host",
            field=models.CharField(
                db_default="",
                default="",
                help_text="The host to which the secret was sent; empty if it was not.",
                max_length=253,
            ),
        ),
        migrations.AddField(
            model_name="Validation",
            name="parameters",
            field=models.JSONField(
                help_text="The proofs of the parameters that were tried, by name; empty if none was.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="Validation",
            name="validated_by",
            field=models.CharField(
                db_default="", default="", help_text="Who asked for it.", max_length=255
            ),
        ),
        migrations.AddIndex(
            model_name="Validation",
            index=models.Index(fields=["endpoint", "-created_at"], name="validation_history"),
        ),
        migrations.AddIndex(
            model_name="Validation",
            index=models.Index(fields=["created_at", "id"], name="validation_latest"),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="attestation",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="RAISE EXCEPTION 'endpoints_attestation is append-only' USING ERRCODE = 'restrict_violation';",
                    hash="71c1bcdfd5e183c3488e350312058f8579fdc394",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_0ea81",
                    table="endpoints_attestation",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="privateendpoint",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (OLD.status <> 'draft' OR NEW.status <> 'draft')",
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="e8af7dee961b0e843d8e031071e7bac187b1a9de",
                    operation="UPDATE",
                    pgid="pgtrigger_version_bump_5b4db",
                    table="endpoints_privateendpoint",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="privateendpoint",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'request_fingerprint', 'watched_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'request_fingerprint', 'watched_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'endpoints.privateendpoint',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="f70c5f8f5b68dd94124aa6b4c1918b8581288f9a",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_15aab",
                    table="endpoints_privateendpoint",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="privateendpoint",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump_on_delete",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="be860315b922f74c5637e3f736eebbd30c25570a",
                    operation="DELETE",
                    pgid="pgtrigger_version_bump_on_delete_e2674",
                    table="endpoints_privateendpoint",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="privateprovider",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="8c437ebf343083cbb1bfe6dd3e0cab41f79d7fbb",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_10f79",
                    table="endpoints_privateprovider",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="privateprovider",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'endpoints.privateprovider',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="b374c5ef378aa17fd3c4ce26f08175c85f55bc97",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_a46d2",
                    table="endpoints_privateprovider",
                    when="AFTER",
                ),
            ),
        ),
    ]
