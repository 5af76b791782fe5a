"""Organizations, workspaces, members, keys, credentials, guardrails, presets and receivers."""

import uuid

import django.contrib.postgres.fields
import django.contrib.postgres.indexes
import django.db.models.deletion
import django.db.models.functions.datetime
import django.db.models.functions.text
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.events.outbox
import config.models
import config.triggers
from config.database.replaced import REPLACED


class Migration(migrations.Migration):
    initial = True

    replaces = [("accounts", name) for name in REPLACED["accounts"]]

    dependencies = [
        ("config", "0001_first_release"),
    ]

    operations = [
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
                        help_text="Triggers raise it when the keys, endpoints or rules of the organization change.",
                    ),
                ),
                ("suspended_at", models.DateTimeField(editable=False, null=True)),
                (
                    "suspended_by",
                    models.CharField(db_default="", default="", editable=False, max_length=255),
                ),
                (
                    "suspension_reason",
                    models.CharField(
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The sentence that refused callers read; empty unless it is suspended.",
                        max_length=500,
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
                    "own_limits",
                    models.JSONField(
                        editable=False,
                        help_text="Limits that differ from the service's, by the names of the settings.",
                        null=True,
                    ),
                ),
            ],
            options={
                "ordering": ("name",),
                "indexes": [
                    models.Index(
                        django.contrib.postgres.indexes.OpClass(
                            django.db.models.functions.text.Upper("name"), name="text_pattern_ops"
                        ),
                        name="organization_by_name",
                    )
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("suspended_at", None), ("suspension_reason", "")),
                            models.Q(
                                ("suspended_at__isnull", False),
                                models.Q(("suspension_reason", ""), _negated=True),
                            ),
                            _connector="OR",
                        ),
                        name="organization_suspended_with_reason",
                    )
                ],
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
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="members",
                        to="accounts.organization",
                    ),
                ),
                ("deleted_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "ordering": ("organization", "email"),
                "indexes": [
                    models.Index(
                        django.contrib.postgres.indexes.OpClass(
                            django.db.models.functions.text.Upper("email"), name="text_pattern_ops"
                        ),
                        name="member_by_email",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "email"), name="member_email_unique"
                    )
                ],
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
                        base_field=models.BigIntegerField(),
                        blank=True,
                        help_text="Numbers of API keys. Empty for all keys of the workspace.",
                        null=True,
                        size=None,
                        verbose_name="keys that are logged",
                    ),
                ),
                (
                    "io_logging_sampling_rate",
                    models.DecimalField(
                        db_default=1,
                        decimal_places=4,
                        default=1,
                        help_text="The part of the requests that is stored: 1 for all, 0.01 for one in a hundred.",
                        max_digits=5,
                        verbose_name="sampling rate",
                    ),
                ),
                (
                    "is_data_discount_logging_enabled",
                    models.BooleanField(db_default=False, default=False),
                ),
                (
                    "is_observability_broadcast_enabled",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="The metadata of generations, never their texts, goes to the enabled destinations of the workspace.",
                        verbose_name="broadcast generations",
                    ),
                ),
                (
                    "is_observability_io_logging_enabled",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Prompts and completions are stored, encrypted and for a limited time. Never those of requests under zero data retention.",
                        verbose_name="log inputs and outputs",
                    ),
                ),
                ("include_byok_in_budgets", models.BooleanField(db_default=False, default=False)),
                ("deleted_at", models.DateTimeField(editable=False, null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="workspaces",
                        to="accounts.organization",
                    ),
                ),
                (
                    "is_answer_storage_enabled",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Answers are kept, encrypted and for a limited time, for requests that are sent again with their Idempotency-Key and for the response cache.",
                        verbose_name="keep answers",
                    ),
                ),
                (
                    "is_response_caching_enabled",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="Requests use the response cache unless they say otherwise. Needs kept answers.",
                        verbose_name="cache responses",
                    ),
                ),
                (
                    "io_logging_retention_days",
                    models.PositiveSmallIntegerField(
                        blank=True,
                        help_text="Texts are deleted after this many days. Empty for as many as the operator allows.",
                        null=True,
                        verbose_name="days of retention",
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
            ],
            options={
                "ordering": ("organization", "name"),
                "indexes": [
                    models.Index(
                        django.contrib.postgres.indexes.OpClass(
                            django.db.models.functions.text.Upper("name"), name="text_pattern_ops"
                        ),
                        name="workspace_by_name",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "slug"), name="workspace_slug_unique"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("is_default", True)),
                        fields=("organization",),
                        name="workspace_one_default",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("io_logging_sampling_rate__gt", 0),
                            ("io_logging_sampling_rate__lte", 1),
                        ),
                        name="workspace_sampling_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("is_response_caching_enabled", False),
                            ("is_answer_storage_enabled", True),
                            _connector="OR",
                        ),
                        name="workspace_cache_keeps_answers",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("io_logging_retention_days__gt", 0)),
                        name="workspace_retention_days",
                    ),
                ],
            },
        ),
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
                        help_text="The public hash of the key. A rotation changes it; a KeyDigest finds the key.",
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
                (
                    "creator",
                    models.ForeignKey(
                        blank=True,
                        db_index=False,
                        help_text="The member who created the key; that member's guardrail applies to it.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="api_keys",
                        to="accounts.member",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_keys",
                        to="accounts.organization",
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="api_keys",
                        to="accounts.workspace",
                    ),
                ),
                (
                    "successor",
                    models.ForeignKey(
                        db_index=False,
                        editable=False,
                        help_text="The key that a rotation gave another secret than this former one.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="former",
                        to="accounts.apikey",
                    ),
                ),
                (
                    "issued_by_operator",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        editable=False,
                        help_text="An operator issued it for an organization that existed, or it was made with such a key: it reads no stored texts, and makes no change that needs a second person.",
                    ),
                ),
            ],
            options={
                "verbose_name": "API key",
                "ordering": ("-created_at",),
                "indexes": [
                    models.Index(
                        django.contrib.postgres.indexes.OpClass(
                            django.db.models.functions.text.Upper("name"), name="text_pattern_ops"
                        ),
                        name="api_key_by_name",
                    ),
                    models.Index(fields=["label"], name="api_key_by_label"),
                    models.Index(
                        condition=models.Q(("successor", None), _negated=True),
                        fields=["successor"],
                        name="api_key_by_successor",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("limit_nano", None), ("limit_nano__gte", 0), _connector="OR"
                        ),
                        name="api_key_limit_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("deleted_at", None), ("disabled", True), _connector="OR"
                        ),
                        name="api_key_deleted_is_disabled",
                    ),
                ],
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
                (
                    "organization",
                    models.ForeignKey(
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="guardrails",
                        to="accounts.organization",
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="guardrails",
                        to="accounts.workspace",
                    ),
                ),
                (
                    "require_private",
                    models.BooleanField(
                        blank=True,
                        help_text="Requests for a model with a private endpoint never go to public ones.",
                        null=True,
                    ),
                ),
            ],
            options={
                "ordering": ("organization", "created_at", "id"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("limit_nano", None), ("limit_nano__gte", 0), _connector="OR"
                        ),
                        name="guardrail_limit_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("limit_nano", None), ("reset_interval", None)),
                            models.Q(
                                ("limit_nano__isnull", False), ("reset_interval__isnull", False)
                            ),
                            _connector="OR",
                        ),
                        name="guardrail_budget_whole",
                    ),
                ],
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
                (
                    "workspace",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="budgets",
                        to="accounts.workspace",
                    ),
                ),
            ],
            options={
                "ordering": ("workspace", "interval"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("workspace", "interval"), name="workspace_budget_unique"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("limit_nano__gt", 0)), name="workspace_budget_positive"
                    ),
                ],
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
                (
                    "member",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="accounts.member",
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="accounts.workspace",
                    ),
                ),
            ],
            options={
                "ordering": ("created_at", "id"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("workspace", "member"), name="workspace_member_unique"
                    )
                ],
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
                        help_text="Hosts that may receive the secret, besides those of the provider. Empty: the host of its first use.",
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
                        db_index=False,
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="byok_credentials",
                        to="accounts.organization",
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: usable in every workspace.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="byok_credentials",
                        to="accounts.workspace",
                    ),
                ),
                (
                    "bound_domains",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=254),
                        editable=False,
                        help_text="The host of the first use; a leading dot, of an earlier release, includes subdomains.",
                        null=True,
                        size=None,
                    ),
                ),
            ],
            options={
                "verbose_name": "BYOK credential",
                "ordering": ("organization", "provider_slug", "sort_order"),
                "indexes": [
                    models.Index(fields=["organization", "provider_slug"], name="byok_lookup")
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("is_fallback", False), ("is_byok_only", False), _connector="OR"
                        ),
                        name="byok_fallback_is_not_byok_only",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("deleted_at", None), ("sealed", b""), _connector="OR"),
                        name="byok_deleted_is_wiped",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="KeyDigest",
            fields=[
                (
                    "digest",
                    models.CharField(
                        help_text="HMAC-SHA256 of the key.",
                        max_length=64,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "pepper",
                    models.CharField(
                        help_text="The id of the pepper; empty until the key is used after an upgrade.",
                        max_length=16,
                        null=True,
                    ),
                ),
                (
                    "api_key",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="digests",
                        to="accounts.apikey",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="RateLimit",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("end_user", models.CharField(db_collation="C", max_length=512, null=True)),
                (
                    "model",
                    models.CharField(
                        help_text="The slug of the model; empty for all models together.",
                        max_length=255,
                        null=True,
                    ),
                ),
                ("subject_id", models.UUIDField(unique=True)),
                ("requests_per_minute", models.BigIntegerField(null=True)),
                ("tokens_per_minute", models.BigIntegerField(null=True)),
                ("requests_per_day", models.BigIntegerField(null=True)),
                ("concurrent_requests", models.BigIntegerField(null=True)),
                (
                    "api_key",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rate_limits",
                        to="accounts.apikey",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rate_limits",
                        to="accounts.organization",
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="rate_limits",
                        to="accounts.workspace",
                    ),
                ),
                ("concurrent_requests_ceiling", models.BigIntegerField(null=True)),
                ("requests_per_day_ceiling", models.BigIntegerField(null=True)),
                ("requests_per_minute_ceiling", models.BigIntegerField(null=True)),
                ("tokens_per_minute_ceiling", models.BigIntegerField(null=True)),
            ],
            options={
                "ordering": ("model",),
                "default_permissions": (),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("api_key", None), ("workspace", None)),
                            models.Q(("end_user", None), ("workspace", None)),
                            models.Q(("api_key", None), ("end_user", None)),
                            _connector="OR",
                        ),
                        name="rate_limit_one_owner",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("concurrent_requests", None),
                            ("requests_per_day", None),
                            ("requests_per_minute", None),
                            ("tokens_per_minute", None),
                            _negated=True,
                        ),
                        name="rate_limit_not_empty",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("requests_per_minute", None),
                                models.Q(
                                    ("requests_per_minute__gt", 0),
                                    ("requests_per_minute__lte", 1000000000000),
                                ),
                                _connector="OR",
                            ),
                            models.Q(
                                ("tokens_per_minute", None),
                                models.Q(
                                    ("tokens_per_minute__gt", 0),
                                    ("tokens_per_minute__lte", 1000000000000),
                                ),
                                _connector="OR",
                            ),
                            models.Q(
                                ("requests_per_day", None),
                                models.Q(
                                    ("requests_per_day__gt", 0),
                                    ("requests_per_day__lte", 1000000000000),
                                ),
                                _connector="OR",
                            ),
                            models.Q(
                                ("concurrent_requests", None),
                                models.Q(
                                    ("concurrent_requests__gt", 0),
                                    ("concurrent_requests__lte", 1000000000000),
                                ),
                                _connector="OR",
                            ),
                        ),
                        name="rate_limit_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("requests_per_minute_ceiling", None),
                                models.Q(
                                    ("requests_per_minute__isnull", False),
                                    (
                                        "requests_per_minute__lte",
                                        models.F("requests_per_minute_ceiling"),
                                    ),
                                ),
                                _connector="OR",
                            ),
                            models.Q(
                                ("tokens_per_minute_ceiling", None),
                                models.Q(
                                    ("tokens_per_minute__isnull", False),
                                    (
                                        "tokens_per_minute__lte",
                                        models.F("tokens_per_minute_ceiling"),
                                    ),
                                ),
                                _connector="OR",
                            ),
                            models.Q(
                                ("requests_per_day_ceiling", None),
                                models.Q(
                                    ("requests_per_day__isnull", False),
                                    ("requests_per_day__lte", models.F("requests_per_day_ceiling")),
                                ),
                                _connector="OR",
                            ),
                            models.Q(
                                ("concurrent_requests_ceiling", None),
                                models.Q(
                                    ("concurrent_requests__isnull", False),
                                    (
                                        "concurrent_requests__lte",
                                        models.F("concurrent_requests_ceiling"),
                                    ),
                                ),
                                _connector="OR",
                            ),
                        ),
                        name="rate_limit_within_ceiling",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BroadcastDestination",
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
                    "kind",
                    models.CharField(
                        choices=[
                            ("otel-collector", "OpenTelemetry collector"),
                            ("webhook", "webhook"),
                        ],
                        max_length=32,
                        verbose_name="type",
                    ),
                ),
                ("name", models.CharField(max_length=255)),
                (
                    "url",
                    models.CharField(
                        help_text="Receives OTLP over HTTP as JSON. Must begin with https.",
                        max_length=2048,
                        verbose_name="URL",
                    ),
                ),
                (
                    "method",
                    models.CharField(
                        choices=[("POST", "POST"), ("PUT", "PUT")], default="POST", max_length=8
                    ),
                ),
                (
                    "header_names",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=100),
                        default=list,
                        editable=False,
                        size=None,
                    ),
                ),
                ("sealed", models.BinaryField()),
                ("is_enabled", models.BooleanField(default=True, verbose_name="enabled")),
                (
                    "sampling_rate",
                    models.DecimalField(
                        decimal_places=4,
                        default=1,
                        help_text="The share of sessions, or of generations without a session, that is sent.",
                        max_digits=5,
                    ),
                ),
                (
                    "regions",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(
                            choices=[("global", "global"), ("europe", "europe"), ("us", "us")],
                            max_length=16,
                        ),
                        default=list,
                        size=None,
                    ),
                ),
                (
                    "api_key_hashes",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        help_text="Only the generations of these keys are sent. Empty: those of all keys.",
                        null=True,
                        size=None,
                        verbose_name="API key hashes",
                    ),
                ),
                ("filter_rules", models.JSONField(blank=True, null=True)),
                (
                    "has_cost",
                    models.BooleanField(
                        default=False,
                        help_text="Sends costs and what they are made of.",
                        verbose_name="cost",
                    ),
                ),
                (
                    "has_identity",
                    models.BooleanField(
                        default=False,
                        help_text="Sends the end user, the API key, its creator and the application.",
                        verbose_name="identity",
                    ),
                ),
                (
                    "has_request_context",
                    models.BooleanField(
                        default=False,
                        help_text="Sends the route, the attempts, the region, the request's id and the user agent.",
                        verbose_name="request context",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="destinations",
                        to="accounts.organization",
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="destinations",
                        to="accounts.workspace",
                    ),
                ),
            ],
            options={
                "verbose_name": "broadcast destination",
                "ordering": ("created_at", "id"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("sampling_rate__gt", 0), ("sampling_rate__lte", 1)),
                        name="destination_sampling_rate",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("kind__in", ("otel-collector", "webhook"))),
                        name="destination_kind",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("url__startswith", "https://")),
                        name="destination_https",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("regions__len__gt", 0)), name="destination_regions"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="BroadcastProgress",
            fields=[
                (
                    "destination",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="progress",
                        serialize=False,
                        to="accounts.broadcastdestination",
                    ),
                ),
                (
                    "cursor_at",
                    models.DateTimeField(help_text="Compared with the time of admission."),
                ),
                ("cursor_id", models.CharField(db_collation="C", default="", max_length=48)),
                (
                    "batch",
                    models.IntegerField(
                        default=200, help_text="Generations in the next request at most."
                    ),
                ),
                (
                    "failures",
                    models.IntegerField(
                        default=0, help_text="Failed requests since the last success."
                    ),
                ),
                ("failing_since", models.DateTimeField(null=True)),
                ("retry_at", models.DateTimeField(null=True)),
                ("last_error", models.CharField(default="", max_length=255)),
                ("succeeded_at", models.DateTimeField(null=True)),
                ("sent", models.BigIntegerField(default=0)),
                (
                    "skipped",
                    models.BigIntegerField(default=0, help_text="Generations that were given up."),
                ),
                (
                    "mean_ms",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Milliseconds that a request takes on average; the last ones count most.",
                        verbose_name="mean duration",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="BroadcastWait",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("generation_id", models.CharField(db_collation="C", max_length=48)),
                (
                    "destination",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="waits",
                        to="accounts.broadcastdestination",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("destination", "generation_id"), name="broadcast_wait_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Subscription",
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
                    "form",
                    models.CharField(
                        choices=[
                            ("webhook", "webhook"),
                            ("slack", "Slack-compatible"),
                            ("email", "e-mail"),
                        ],
                        max_length=16,
                    ),
                ),
                ("name", models.CharField(blank=True, max_length=255)),
                ("url", models.CharField(blank=True, max_length=2048, verbose_name="URL")),
                ("email", models.EmailField(blank=True, max_length=254, verbose_name="address")),
                (
                    "kinds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.CharField(max_length=64),
                        blank=True,
                        help_text="The kinds of events to send; empty for all.",
                        null=True,
                        size=None,
                    ),
                ),
                ("sealed", models.BinaryField(default=b"")),
                ("previous", models.BinaryField(default=b"")),
                ("previous_until", models.DateTimeField(editable=False, null=True)),
                ("disabled", models.BooleanField(default=False, editable=False)),
                ("disabled_reason", models.CharField(default="", editable=False, max_length=255)),
                (
                    "failures",
                    models.PositiveIntegerField(
                        default=0,
                        editable=False,
                        help_text="Attempts that failed since the last success.",
                    ),
                ),
                ("failing_since", models.DateTimeField(editable=False, null=True)),
                (
                    "retry_at",
                    models.DateTimeField(
                        editable=False,
                        help_text="Nothing is sent before, because attempts failed.",
                        null=True,
                    ),
                ),
                (
                    "member",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="subscriptions",
                        to="accounts.member",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        blank=True,
                        help_text="Leave it empty to send the events of all organizations to operators.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="subscriptions",
                        to="accounts.organization",
                    ),
                ),
                (
                    "mean_ms",
                    models.PositiveIntegerField(
                        db_default=0,
                        default=0,
                        editable=False,
                        help_text="Milliseconds that an attempt takes on average; the last ones count most.",
                        verbose_name="mean duration",
                    ),
                ),
            ],
            options={
                "ordering": ("organization", "created_at", "id"),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(
                                ("form", "email"),
                                ("url", ""),
                                models.Q(
                                    models.Q(("email", ""), _negated=True),
                                    ("member__isnull", False),
                                    _connector="OR",
                                ),
                            ),
                            models.Q(
                                models.Q(("form", "email"), _negated=True),
                                models.Q(("url", ""), _negated=True),
                                models.Q(("sealed", b""), _negated=True),
                                ("email", ""),
                                ("member", None),
                            ),
                            _connector="OR",
                        ),
                        name="subscription_has_a_receiver",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("form", "webhook"), ("previous", b""), _connector="OR"),
                        name="subscription_webhooks_rotate",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=config.events.outbox.new_event_id,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("delivered", "delivered"),
                            ("failed", "failed"),
                            ("held", "held back"),
                            ("digested", "told by a digest"),
                        ],
                        db_default="pending",
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("attempts", models.PositiveIntegerField(db_default=0, default=0)),
                (
                    "next_attempt_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("response_status", models.PositiveSmallIntegerField(null=True)),
                ("error", models.CharField(db_default="", default="", max_length=255)),
                ("duration_ms", models.PositiveIntegerField(null=True)),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("delivered_at", models.DateTimeField(null=True)),
                (
                    "event",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.DO_NOTHING,
                        related_name="+",
                        to="config.event",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
                (
                    "subscription",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="accounts.subscription",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "pending")),
                        fields=["subscription", "next_attempt_at"],
                        name="delivery_waiting",
                    ),
                    models.Index(
                        condition=models.Q(("status", "held")),
                        fields=["subscription", "-id"],
                        name="delivery_held",
                    ),
                    models.Index(fields=["subscription", "-id"], name="delivery_log"),
                    models.Index(fields=["organization", "-id"], name="delivery_by_organization"),
                    models.Index(fields=["event"], name="delivery_by_event"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("subscription", "event"), name="delivery_once"),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("delivered_at__isnull", False), ("status", "delivered")),
                            models.Q(("status", "delivered"), _negated=True),
                            _connector="OR",
                        ),
                        name="delivery_stamp",
                    ),
                ],
            },
        ),
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
        migrations.CreateModel(
            name="ManualSends",
            fields=[
                (
                    "organization",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="+",
                        serialize=False,
                        to="accounts.organization",
                    ),
                ),
                ("minute", models.DateTimeField()),
                ("count", models.PositiveSmallIntegerField()),
            ],
            options={
                "verbose_name_plural": "manual sends",
            },
        ),
        migrations.CreateModel(
            name="Preset",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("slug", models.CharField(max_length=64)),
                ("name", models.CharField(max_length=255)),
                ("description", models.TextField(blank=True, null=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("active", "active"),
                            ("disabled", "disabled"),
                            ("archived", "archived"),
                        ],
                        db_default="active",
                        default="active",
                        max_length=16,
                    ),
                ),
                ("status_updated_at", models.DateTimeField(editable=False, null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="presets",
                        to="accounts.organization",
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="presets",
                        to="accounts.workspace",
                    ),
                ),
            ],
            options={
                "ordering": ("created_at", "id"),
            },
        ),
        migrations.CreateModel(
            name="PresetVersion",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("version", models.IntegerField()),
                ("config", models.TextField(help_text="The fields of a chat completion, as JSON.")),
                ("system_prompt", models.TextField(blank=True, null=True)),
                ("created_by", models.CharField(max_length=255)),
                (
                    "preset",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="accounts.preset",
                    ),
                ),
            ],
            options={
                "ordering": ("preset", "-version"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("preset", "version"), name="preset_version_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Creation",
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
                ("resource", models.CharField(max_length=64)),
                ("row_id", models.UUIDField(db_index=True)),
                ("has_secret", models.BooleanField(db_default=False, default=False)),
                ("sealed", models.BinaryField(null=True)),
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
                "default_permissions": (),
                "indexes": [
                    models.Index(
                        condition=models.Q(("sealed__isnull", False)),
                        fields=["created_at"],
                        name="creation_sealed",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "resource", "idempotency_key"),
                        name="creation_key_unique",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("sealed", None), ("has_secret", True), _connector="OR"),
                        name="creation_sealed_is_secret",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="CredentialRest",
            fields=[
                (
                    "credential",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="rest",
                        serialize=False,
                        to="accounts.byokcredential",
                    ),
                ),
                ("upstream_status", models.PositiveSmallIntegerField()),
                ("since", models.DateTimeField(help_text="When the provider refused it first.")),
                ("seen_at", models.DateTimeField(help_text="When the provider refused it last.")),
            ],
        ),
        migrations.AddField(
            model_name="Preset",
            name="designated_version",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="accounts.presetversion",
            ),
        ),
        migrations.AddConstraint(
            model_name="Preset",
            constraint=models.UniqueConstraint(
                fields=("workspace", "slug"), name="preset_slug_unique"
            ),
        ),
        migrations.AddConstraint(
            model_name="Preset",
            constraint=models.CheckConstraint(
                condition=models.Q(("status__in", ("active", "disabled", "archived"))),
                name="preset_status",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="announce_version",
                sql=config.triggers.TriggerSql(
                    condition='WHEN (OLD."routing_version" IS DISTINCT FROM (NEW."routing_version"))',
                    func="PERFORM pg_notify('causeway_versions', NEW.id::text);\nRETURN NULL;",
                    hash="8f49c081201b973f1a912c7f282ffaaebdf6eec5",
                    operation="UPDATE",
                    pgid="pgtrigger_announce_version_df3c6",
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
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'routing_version']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'routing_version']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.organization',\n    changed ->> 'id', (changed ->> 'id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="733bae590a975a3a325b62c5f71781b9b9cf2975",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_6867b",
                    table="accounts_organization",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="settings_changed",
                sql=config.triggers.TriggerSql(
                    condition='WHEN ((OLD."allowed_networks" IS DISTINCT FROM (NEW."allowed_networks") OR OLD."allowed_providers" IS DISTINCT FROM (NEW."allowed_providers") OR OLD."ca_certificates" IS DISTINCT FROM (NEW."ca_certificates") OR OLD."fallback" IS DISTINCT FROM (NEW."fallback") OR OLD."forbids_training" IS DISTINCT FROM (NEW."forbids_training") OR OLD."ignored_providers" IS DISTINCT FROM (NEW."ignored_providers") OR OLD."requires_zdr" IS DISTINCT FROM (NEW."requires_zdr") OR OLD."suspension_reason" IS DISTINCT FROM (NEW."suspension_reason")))',
                    func="NEW.routing_version := pg_current_xact_id()::text::bigint;\nRETURN NEW;",
                    hash="f085317a1df29d2a773493b7af21efa546b96708",
                    operation="UPDATE",
                    pgid="pgtrigger_settings_changed_9d2c4",
                    table="accounts_organization",
                    when="BEFORE",
                ),
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
        pgtrigger.migrations.AddTrigger(
            model_name="apikey",
            trigger=pgtrigger.compiler.Trigger(
                name="first_digest",
                sql=config.triggers.TriggerSql(
                    func="INSERT INTO accounts_keydigest (digest, api_key_id)\nVALUES (NEW.digest, NEW.id) ON CONFLICT (digest) DO NOTHING;\nRETURN NULL;",
                    hash="84eb4a8f977811a9f3a83ca3fa7be4423d11bcbd",
                    operation="INSERT",
                    pgid="pgtrigger_first_digest_30549",
                    table="accounts_apikey",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="apikey",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="cfaf7e064a63b2020ce01a2164469791e424611f",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_1151a",
                    table="accounts_apikey",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
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
        pgtrigger.migrations.AddTrigger(
            model_name="ratelimit",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="648044aa17f5bf1537a27ac4f50098e435fc63ec",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_4db2a",
                    table="accounts_ratelimit",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="ratelimit",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.ratelimit',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="fc8d3a13715e9ea3882a24998654eb2e61c6c755",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_1a6fc",
                    table="accounts_ratelimit",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="broadcastdestination",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['sealed']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['sealed']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.broadcastdestination',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="a8e363e2c11c850e25a2da6d8d8ea9e7fc783bef",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_39853",
                    table="accounts_broadcastdestination",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="subscription",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'failures', 'failing_since', 'retry_at', 'mean_ms']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'failures', 'failing_since', 'retry_at', 'mean_ms']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['sealed', 'previous']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['sealed', 'previous']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.subscription',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="5181ba43b3adf87d3e1a6262f73ea2457624b5c1",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_93875",
                    table="accounts_subscription",
                    when="AFTER",
                ),
            ),
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
        pgtrigger.migrations.AddTrigger(
            model_name="preset",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.preset',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="7e2565da18aea6abef67cd6c3823c4787dd724d2",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_c8bfa",
                    table="accounts_preset",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="presetversion",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['config', 'system_prompt']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['config', 'system_prompt']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.presetversion',\n    changed ->> 'id', (SELECT organization_id FROM accounts_preset WHERE id = (changed ->> 'preset_id')::uuid), was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="38808963c4afd5ef448c99aa2c2a56095f62c723",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_4205d",
                    table="accounts_presetversion",
                    when="AFTER",
                ),
            ),
        ),
    ]
