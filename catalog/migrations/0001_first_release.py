"""Providers, models, endpoints, prices and aliases."""

import uuid

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.text
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.models
import config.triggers
from config.database.replaced import REPLACED

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

    replaces = [("catalog", name) for name in REPLACED["catalog"]]

    dependencies = [
        ("accounts", "0001_first_release"),
    ]

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
                ("slug", models.CharField(max_length=255)),
                ("canonical_slug", models.CharField(max_length=255)),
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
                (
                    "combines_sampling",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Otherwise it gets the temperature alone. Matters to Anthropic's format.",
                        verbose_name="accepts temperature with top_p",
                    ),
                ),
                (
                    "native_format",
                    models.CharField(
                        choices=[
                            ("openai", "OpenAI"),
                            ("anthropic", "Anthropic Messages"),
                            ("responses", "OpenAI Responses alone"),
                            ("openai_responses", "OpenAI and OpenAI Responses"),
                        ],
                        db_default="openai",
                        default="openai",
                        help_text="The format in which Azure, Bedrock and Vertex serve the model. Responses: all its providers of the dialects OpenAI and Azure serve /responses.",
                        max_length=16,
                    ),
                ),
                (
                    "thinking",
                    models.CharField(
                        choices=[("effort", "an effort"), ("budget", "a budget of tokens")],
                        db_default="effort",
                        default="effort",
                        help_text="Matters to the formats of Anthropic and Gemini.",
                        max_length=16,
                        verbose_name="thinking is limited by",
                    ),
                ),
                (
                    "thinks_between_tools",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Such a model cannot be forced to call a tool. Matters to Anthropic's format.",
                        verbose_name="always thinks between tools",
                    ),
                ),
                (
                    "base_model",
                    models.CharField(db_default="", default="", editable=False, max_length=255),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        editable=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="own_models",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "model",
                "ordering": ("slug",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            (
                                "native_format__in",
                                ["openai", "anthropic", "responses", "openai_responses"],
                            ),
                            ("thinking__in", ["effort", "budget"]),
                        ),
                        name="model_capabilities_known",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("organization", None)),
                        fields=("slug",),
                        name="model_slug_unique",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("organization", None)),
                        fields=("canonical_slug",),
                        name="model_canonical_slug_unique",
                    ),
                    models.UniqueConstraint(
                        models.F("organization"),
                        django.db.models.functions.text.Lower("slug"),
                        condition=models.Q(("is_listed", True), ("organization__isnull", False)),
                        name="own_model_slug_unique",
                    ),
                ],
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
                (
                    "discount",
                    models.DecimalField(
                        db_default=0,
                        decimal_places=10,
                        default=0,
                        help_text="The share that is taken off every rate.",
                        max_digits=11,
                    ),
                ),
                ("lines", models.JSONField(blank=True, db_default=[], default=list)),
            ],
            options={
                "ordering": ("-id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("completion__gte", 0),
                            ("image__gte", 0),
                            ("prompt__gte", 0),
                            ("request__gte", 0),
                            models.Q(("cache_read", None), ("cache_read__gte", 0), _connector="OR"),
                            models.Q(
                                ("cache_write", None), ("cache_write__gte", 0), _connector="OR"
                            ),
                            models.Q(
                                ("image_output", None), ("image_output__gte", 0), _connector="OR"
                            ),
                        ),
                        name="price_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("discount__gte", 0), ("discount__lte", 1)),
                        name="price_discount_is_a_share",
                    ),
                ],
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
                (
                    "requests_per_minute",
                    models.IntegerField(
                        blank=True,
                        help_text="Of the operator's account at the provider. Empty: no limit is known.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "tokens_per_minute",
                    models.BigIntegerField(
                        blank=True,
                        help_text="Prompt and completion tokens. Empty: no limit is known.",
                        null=True,
                        validators=[django.core.validators.MinValueValidator(1)],
                    ),
                ),
                (
                    "allowed_networks",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            max_length=43, validators=[config.models.require_network]
                        ),
                        blank=True,
                        help_text="Networks that connections may reach although they are not public, such as 10.0.0.5/32. UPSTREAM_ALLOWED_NETWORKS has those of everybody.",
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "ca_certificates",
                    models.TextField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="Authorities in PEM that are trusted besides the public ones.",
                        max_length=65536,
                        validators=[config.models.require_authorities],
                        verbose_name="CA certificates",
                    ),
                ),
                (
                    "is_keyless",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="The server answers without a credential, and is sent none of the operator's.",
                        verbose_name="takes no key",
                    ),
                ),
            ],
            options={
                "ordering": ("slug",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("is_keyless", False),
                            models.Q(
                                ("dialect__in", ["openai", "anthropic", "gemini"]),
                                ("sealed_credential", None),
                            ),
                            _connector="OR",
                        ),
                        name="provider_keyless_has_no_credential",
                    )
                ],
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
                (
                    "model",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="endpoints",
                        to="catalog.languagemodel",
                    ),
                ),
                (
                    "price",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="catalog.priceversion",
                    ),
                ),
                (
                    "provider",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="endpoints",
                        to="catalog.provider",
                    ),
                ),
                (
                    "as_of",
                    models.DateField(
                        editable=False, help_text="The day of the price list.", null=True
                    ),
                ),
                (
                    "source",
                    models.CharField(
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The price list that the price comes from. Empty: an operator set it.",
                        max_length=255,
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
                    "abilities",
                    models.JSONField(
                        blank=True,
                        db_default={},
                        default=dict,
                        help_text="What else the endpoint is able to do, as in the catalogue file.",
                    ),
                ),
            ],
            options={
                "ordering": ("model", "provider"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("model", "provider", "upstream_model_id", "region"),
                        name="model_endpoint_unique",
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
                        name="model_endpoint_times",
                    ),
                ],
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
        migrations.CreateModel(
            name="CatalogChange",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("version", models.BigIntegerField()),
                (
                    "subject_id",
                    models.UUIDField(help_text="The id of the model or of the provider."),
                ),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("version", "subject_id"), name="catalog_change_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="CatalogProposal",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("source", models.CharField(editable=False, max_length=32)),
                ("as_of", models.DateField(editable=False)),
                ("subject", models.CharField(editable=False, max_length=1100)),
                ("endpoint_id", models.UUIDField(editable=False, null=True)),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("rise", "a price rises"),
                            ("fall", "a price falls to a tenth or less"),
                            ("unpriced", "the list has no price"),
                            ("vanished", "no longer in the list"),
                            ("new", "a new endpoint"),
                            ("unclear", "the list does not say what the model serves"),
                            ("change", "a change"),
                        ],
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("changes", models.JSONField(editable=False)),
                ("content", models.JSONField(editable=False)),
                ("basis", models.CharField(default="", editable=False, max_length=64)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("approved", "approved"),
                            ("refused", "refused"),
                            ("withdrawn", "withdrawn"),
                        ],
                        default="waiting",
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("decided_at", models.DateTimeField(editable=False, null=True)),
                ("decided_by", models.CharField(default="", editable=False, max_length=255)),
                (
                    "risk",
                    models.CharField(
                        db_default="",
                        default="",
                        editable=False,
                        help_text="Why to look twice. Empty for an ordinary change.",
                        max_length=64,
                    ),
                ),
            ],
            options={
                "ordering": ("-created_at", "subject"),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("status", "waiting")),
                        fields=("subject",),
                        name="catalog_proposal_unique",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("decided_at", None), ("status", "waiting")),
                            models.Q(
                                ("decided_at__isnull", False),
                                models.Q(("status", "waiting"), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="catalog_proposal_is_consistent",
                    ),
                ],
                "verbose_name": "catalogue proposal",
            },
        ),
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
                        db_index=False,
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
        migrations.CreateModel(
            name="CredentialRefusal",
            fields=[
                (
                    "provider",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="refusal",
                        serialize=False,
                        to="catalog.provider",
                    ),
                ),
                (
                    "reason",
                    models.TextField(help_text="The provider's code and message, without secrets."),
                ),
                ("since", models.DateTimeField()),
                ("seen_at", models.DateTimeField(help_text="When the provider refused it last.")),
            ],
        ),
        migrations.RunSQL(HOLD_CATALOG, "DROP FUNCTION causeway_hold_catalog()"),
        pgtrigger.migrations.AddTrigger(
            model_name="languagemodel",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'catalog.languagemodel',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="a5fea8bae64fe86826d1ae7f47714642592b12ce",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_e0b90",
                    table="catalog_languagemodel",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="languagemodel",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF COALESCE(NEW.organization_id, OLD.organization_id) IS NOT NULL THEN\nUPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;\nEND IF;\nIF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.id, OLD.id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="54fcba6dcf67e364b15339124b4e29632ec55d2f",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_47477",
                    table="catalog_languagemodel",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
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
        pgtrigger.migrations.AddTrigger(
            model_name="provider",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.id, OLD.id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="44e2067802be04aa875030d1dd6889b323ec4f97",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_458a0",
                    table="catalog_provider",
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
        pgtrigger.migrations.AddTrigger(
            model_name="modelendpoint",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.model_id, OLD.model_id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="995470517468010e232bf5bec3c34a1a6f993f44",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_77f82",
                    table="catalog_modelendpoint",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="catalogproposal",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'catalog.catalogproposal',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="2c37909225539e75a1b74b5de080fad174531dbd",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_6774a",
                    table="catalog_catalogproposal",
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
    ]
