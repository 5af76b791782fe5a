"""Generations, what is kept beside them, and the sums of reports."""

import django.contrib.postgres.fields
import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers
from config.database.replaced import REPLACED
from config.partitions.creation import divide
from config.partitions.declarations import Partitioning
from config.partitions.spans import YEAR
from inference.ids import id_bound, read_id_bound

GENERATIONS = Partitioning(
    "inference_generation",
    "id",
    write_bound=id_bound,
    read_bound=read_id_bound,
    storage={"fillfactor": 40},
)
HOURS = Partitioning("inference_hourlyusage", "hour", YEAR)


def divide_generation(apps, schema_editor):
    divide(GENERATIONS, ("id",))


def divide_hourlyusage(apps, schema_editor):
    divide(HOURS, ("hour",))


class Migration(migrations.Migration):
    initial = True

    replaces = [("inference", name) for name in REPLACED["inference"]]

    dependencies = [
        ("accounts", "0001_first_release"),
        ("catalog", "0001_first_release"),
        ("endpoints", "0001_first_release"),
    ]

    operations = [
        migrations.CreateModel(
            name="EndpointHealth",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "endpoint_id",
                        "slot",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("endpoint_id", models.UUIDField()),
                ("slot", models.SmallIntegerField()),
                ("bucket", models.BigIntegerField(help_text="Unix time divided by five seconds.")),
                ("successes", models.IntegerField()),
                ("failures", models.IntegerField()),
                (
                    "latencies",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.IntegerField(), help_text="In milliseconds.", size=None
                    ),
                ),
                (
                    "speeds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(), help_text="In tokens per second.", size=None
                    ),
                ),
                ("retry_at", models.FloatField(help_text="In Unix seconds, or 0.")),
                (
                    "changed",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="The transaction that wrote the row last.",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["changed"], name="health_changed")],
            },
        ),
        migrations.CreateModel(
            name="Generation",
            fields=[
                ("id", models.CharField(max_length=48, primary_key=True, serialize=False)),
                ("end_user", models.CharField(db_collation="C", max_length=512, null=True)),
                ("session_id", models.CharField(max_length=256, null=True)),
                (
                    "region",
                    models.CharField(
                        db_default="global",
                        default="global",
                        help_text="The region of the host that was called.",
                        max_length=16,
                    ),
                ),
                ("http_referer", models.CharField(max_length=512, null=True)),
                ("app_title", models.CharField(max_length=255, null=True)),
                ("user_agent", models.CharField(max_length=255, null=True)),
                ("operation", models.CharField(max_length=32)),
                ("streamed", models.BooleanField()),
                (
                    "model",
                    models.CharField(
                        help_text="The slug of the model; the request may have named an alias of it.",
                        max_length=255,
                    ),
                ),
                ("provider_name", models.CharField(max_length=255)),
                ("is_byok", models.BooleanField()),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("completed", "completed"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        default="pending",
                        max_length=16,
                    ),
                ),
                ("prompt_tokens", models.BigIntegerField(null=True)),
                ("completion_tokens", models.BigIntegerField(null=True)),
                ("cached_tokens", models.BigIntegerField(null=True)),
                ("cache_write_tokens", models.BigIntegerField(null=True)),
                ("reasoning_tokens", models.BigIntegerField(null=True)),
                (
                    "is_estimated",
                    models.BooleanField(default=False, help_text="The upstream reported no usage."),
                ),
                (
                    "hold_nano",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="The hold on credits, in nano-USD."
                    ),
                ),
                (
                    "upstream_hold_nano",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="The upper bound of the cost paid by BYOK credentials, in nano-USD.",
                    ),
                ),
                (
                    "cost_nano",
                    models.BigIntegerField(
                        default=0, help_text="The cost paid by credits, in nano-USD."
                    ),
                ),
                (
                    "upstream_cost_nano",
                    models.BigIntegerField(
                        default=0,
                        help_text="The cost of the usage at the pinned price, in nano-USD.",
                    ),
                ),
                ("finish_reason", models.CharField(max_length=64, null=True)),
                ("native_finish_reason", models.CharField(max_length=64, null=True)),
                ("upstream_id", models.CharField(max_length=255, null=True)),
                ("upstream_model", models.CharField(max_length=255, null=True)),
                ("error_type", models.CharField(max_length=64, null=True)),
                ("attempts", models.JSONField(default=list)),
                ("created_at", models.DateTimeField()),
                (
                    "latency_ms",
                    models.PositiveIntegerField(help_text="Time to the first event.", null=True),
                ),
                ("duration_ms", models.PositiveIntegerField(null=True)),
                ("request_id", models.CharField(default="", max_length=64)),
                (
                    "api_key",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.apikey",
                    ),
                ),
                (
                    "attestation",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        help_text="The private endpoint's attestation when the request was sent.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="endpoints.attestation",
                    ),
                ),
                (
                    "member",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        help_text="The creator of the key at the time of the request.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.member",
                    ),
                ),
                (
                    "model_endpoint",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="catalog.modelendpoint",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
                (
                    "price",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="catalog.priceversion",
                    ),
                ),
                (
                    "private_endpoint",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="endpoints.privateendpoint",
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.workspace",
                    ),
                ),
                (
                    "held_tokens",
                    models.BigIntegerField(
                        help_text="The tokens held on the meters while it runs; empty if they do not count it.",
                        null=True,
                    ),
                ),
                (
                    "limit_subjects",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.UUIDField(),
                        help_text="The meters that count the request for rate limits, besides those of its key, workspace and member.",
                        null=True,
                        size=None,
                    ),
                ),
                (
                    "units",
                    models.JSONField(
                        help_text="What was used besides these tokens: images, searches, audio, …",
                        null=True,
                    ),
                ),
                (
                    "reported_cost_nano",
                    models.BigIntegerField(
                        help_text="The cost that the provider itself reported, in nano-USD.",
                        null=True,
                    ),
                ),
                (
                    "trace",
                    models.TextField(
                        editable=False,
                        help_text="The caller's own trace of the request, as JSON.",
                        null=True,
                    ),
                ),
                (
                    "cached_from",
                    models.CharField(
                        help_text="The generation whose answer was given again, from the response cache.",
                        max_length=48,
                        null=True,
                    ),
                ),
                (
                    "retry_of",
                    models.CharField(
                        help_text="The generation that the caller's SDK sent again after a lost connection.",
                        max_length=48,
                        null=True,
                    ),
                ),
                (
                    "preset_id",
                    models.UUIDField(help_text="The preset that the request named.", null=True),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        fields=["organization", "-created_at"], name="generation_by_organization"
                    ),
                    models.Index(fields=["api_key", "created_at"], name="generation_by_key"),
                    models.Index(
                        condition=models.Q(("end_user__isnull", False)),
                        fields=["end_user", "-created_at"],
                        name="generation_by_end_user",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("cost_nano__gte", 0), ("upstream_cost_nano__gte", 0)),
                        name="generation_cost_not_negative",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("private_endpoint", None), ("model_endpoint", None), _connector="XOR"
                        ),
                        name="generation_one_endpoint",
                    ),
                ],
            },
        ),
        migrations.RunPython(divide_generation, migrations.RunPython.noop),
        migrations.CreateModel(
            name="HourlyUsage",
            fields=[
                ("hour", models.DateTimeField(primary_key=True, serialize=False)),
                ("requests", models.BigIntegerField()),
                ("failed", models.BigIntegerField()),
                ("tokens", models.BigIntegerField(help_text="Prompt and completion tokens.")),
                (
                    "cost_nano",
                    models.BigIntegerField(help_text="The cost paid by credits, in nano-USD."),
                ),
                (
                    "upstream_nano",
                    models.BigIntegerField(
                        help_text="The cost of the usage at pinned prices, in nano-USD."
                    ),
                ),
                (
                    "latency_ms",
                    models.BigIntegerField(help_text="The sum of the times to the first event."),
                ),
                (
                    "timed",
                    models.BigIntegerField(
                        help_text="The number of generations with a first event."
                    ),
                ),
                (
                    "is_detailed",
                    models.BooleanField(
                        db_default=False,
                        default=False,
                        help_text="The hour has a HourlyShare for its parts.",
                    ),
                ),
            ],
        ),
        migrations.RunPython(divide_hourlyusage, migrations.RunPython.noop),
        migrations.CreateModel(
            name="UsageDay",
            fields=[
                ("day", models.DateField(primary_key=True, serialize=False)),
                ("rolled_up_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="Journal",
            fields=[
                (
                    "generation",
                    models.OneToOneField(
                        db_constraint=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="journal",
                        serialize=False,
                        to="inference.generation",
                    ),
                ),
                ("prompt_tokens", models.BigIntegerField(help_text="Estimated.")),
                (
                    "completion_tokens",
                    models.BigIntegerField(help_text="Delivered so far, estimated."),
                ),
                (
                    "images",
                    models.IntegerField(db_default=0, default=0, help_text="Images in the prompt."),
                ),
                ("beat_at", models.DateTimeField()),
                (
                    "units",
                    models.JSONField(
                        help_text="What the request says of its usage: characters, search units, images, …",
                        null=True,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Feedback",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "category",
                    models.CharField(
                        choices=[
                            ("latency", "latency"),
                            ("incoherence", "incoherence"),
                            ("incorrect_response", "incorrect response"),
                            ("formatting", "formatting"),
                            ("billing", "billing"),
                            ("api_error", "API error"),
                            ("other", "other"),
                        ],
                        max_length=32,
                    ),
                ),
                ("comment", models.CharField(blank=True, max_length=4096)),
                ("created_by", models.CharField(max_length=255)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "generation",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="feedback",
                        to="inference.generation",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "feedback",
                "ordering": ("-id",),
                "constraints": [
                    models.UniqueConstraint(fields=("generation", "category"), name="feedback_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="DailyUsage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("by_end_user", models.BooleanField()),
                ("workspace_id", models.UUIDField()),
                ("api_key_id", models.UUIDField()),
                ("member_id", models.UUIDField(null=True)),
                ("end_user", models.CharField(db_collation="C", max_length=512, null=True)),
                ("endpoint_id", models.UUIDField()),
                ("model", models.CharField(max_length=255)),
                ("provider_name", models.CharField(max_length=255)),
                ("requests", models.BigIntegerField()),
                ("prompt_tokens", models.BigIntegerField()),
                ("completion_tokens", models.BigIntegerField()),
                ("cached_tokens", models.BigIntegerField()),
                ("reasoning_tokens", models.BigIntegerField()),
                (
                    "cost_nano",
                    models.BigIntegerField(help_text="The cost paid by credits, in nano-USD."),
                ),
                (
                    "byok_nano",
                    models.BigIntegerField(
                        help_text="The upstream cost of BYOK credentials, in nano-USD."
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
                (
                    "day",
                    models.ForeignKey(
                        db_column="day",
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="inference.usageday",
                    ),
                ),
                (
                    "cancelled",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="The requests whose caller left."
                    ),
                ),
                (
                    "cancelled_nano",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="The upstream cost of these, in nano-USD.",
                    ),
                ),
                ("upstream_nano", models.BigIntegerField(null=True)),
                ("failed", models.BigIntegerField(null=True)),
                ("latency_ms", models.BigIntegerField(null=True)),
                ("timed", models.BigIntegerField(null=True)),
            ],
            options={
                "indexes": [
                    models.Index(fields=["organization", "by_end_user", "day"], name="daily_usage"),
                    models.Index(
                        condition=models.Q(("by_end_user", True)),
                        fields=["organization", "end_user", "day"],
                        name="daily_usage_of_end_user",
                    ),
                    models.Index(
                        condition=models.Q(("by_end_user", False)),
                        fields=["day"],
                        include=("organization", "model", "requests", "cost_nano"),
                        name="daily_usage_ranking",
                    ),
                    models.Index(
                        condition=models.Q(("by_end_user", True), ("end_user__isnull", False)),
                        fields=["day"],
                        include=("organization", "end_user", "requests", "cost_nano"),
                        name="daily_usage_of_end_users",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Uptime",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("since", models.DateTimeField()),
                ("beat_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="ApiKeyUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("accounts.apikey",),
        ),
        migrations.CreateModel(
            name="MemberUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("accounts.member",),
        ),
        migrations.CreateModel(
            name="ModelEndpointUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("catalog.modelendpoint",),
        ),
        migrations.CreateModel(
            name="OrganizationUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("accounts.organization",),
        ),
        migrations.CreateModel(
            name="PrivateEndpointUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("endpoints.privateendpoint",),
        ),
        migrations.CreateModel(
            name="WorkspaceUse",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("accounts.workspace",),
        ),
        migrations.CreateModel(
            name="ProviderPace",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "provider_id",
                        "bucket",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("provider_id", models.UUIDField()),
                ("bucket", models.BigIntegerField(help_text="Unix time divided by five seconds.")),
                ("requests", models.IntegerField()),
                ("tokens", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="IdempotentRequest",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("api_key_id", models.UUIDField()),
                ("route", models.CharField(max_length=64)),
                ("key", models.CharField(db_collation="C", max_length=255)),
                (
                    "fingerprint",
                    models.BinaryField(help_text="A digest of the body and of what changes it."),
                ),
                ("generation_id", models.CharField(db_collation="C", max_length=48)),
                ("is_kept", models.BooleanField(help_text="Its workspace keeps answers.")),
                ("claimed_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["generation_id"], name="idempotent_by_generation"),
                    models.Index(fields=["expires_at"], name="idempotent_by_expiry"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("api_key_id", "route", "key"), name="idempotent_request_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="KeptAnswer",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("generation_id", models.CharField(db_collation="C", max_length=48)),
                ("cache_key", models.BinaryField(null=True)),
                ("endpoint_id", models.UUIDField(null=True)),
                ("sealed", models.BinaryField()),
                (
                    "size",
                    models.IntegerField(
                        help_text="What it counts against the organization's limit."
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["organization_id", "id"],
                        include=("cache_key", "size"),
                        name="kept_answer_by_organization",
                    ),
                    models.Index(fields=["expires_at"], name="kept_answer_by_expiry"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("cache_key__isnull", False)),
                        fields=("organization_id", "cache_key"),
                        name="kept_answer_cached_once",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("cache_key__isnull", True)),
                        fields=("generation_id",),
                        name="kept_answer_once",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="EndpointHour",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "hour",
                        "endpoint_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("hour", models.DateTimeField()),
                ("endpoint_id", models.UUIDField()),
                ("tokens", models.BigIntegerField(help_text="Prompt and completion tokens.")),
                ("minutes", models.IntegerField()),
                ("minutes_up", models.IntegerField(help_text="Those with 80 % successes.")),
            ],
        ),
        migrations.CreateModel(
            name="HourlyShare",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("hour", models.DateTimeField()),
                ("organization_id", models.UUIDField(null=True)),
                ("workspace_id", models.UUIDField(null=True)),
                ("api_key_id", models.UUIDField(null=True)),
                ("endpoint_id", models.UUIDField()),
                ("model", models.CharField(max_length=255)),
                ("provider_name", models.CharField(max_length=255)),
                ("requests", models.BigIntegerField()),
                ("failed", models.BigIntegerField()),
                ("tokens", models.BigIntegerField()),
                ("cost_nano", models.BigIntegerField()),
                ("upstream_nano", models.BigIntegerField()),
                ("latency_ms", models.BigIntegerField()),
                ("timed", models.BigIntegerField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["organization_id", "hour"], name="hourly_share_of_tenant"),
                    models.Index(
                        condition=models.Q(("organization_id", None)),
                        fields=["endpoint_id", "hour"],
                        name="hourly_share_of_endpoint",
                    ),
                    models.Index(
                        condition=models.Q(("organization_id", None)),
                        fields=["model", "hour"],
                        name="hourly_share_of_model",
                    ),
                    models.Index(
                        condition=models.Q(("organization_id", None)),
                        fields=["provider_name", "hour"],
                        name="hourly_share_of_provider",
                    ),
                    models.Index(fields=["hour"], name="hourly_share_by_hour"),
                ],
            },
        ),
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
                "default_permissions": (),
                "permissions": [("read_input_and_output", "Can read stored inputs and outputs")],
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
        migrations.CreateModel(
            name="HourlyFailure",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("hour", models.DateTimeField()),
                ("provider_name", models.CharField(max_length=255)),
                ("error_type", models.CharField(max_length=64)),
                ("attempts", models.BigIntegerField()),
                ("requests", models.BigIntegerField()),
                ("last_at", models.DateTimeField()),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("hour", "provider_name", "error_type"), name="hourly_failure_unique"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ShadowCount",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "shadow_id",
                        "api_key_id",
                        "hour",
                        "reason",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("shadow_id", models.UUIDField()),
                ("api_key_id", models.UUIDField()),
                ("hour", models.DateTimeField()),
                ("reason", models.CharField(max_length=32)),
                ("requests", models.BigIntegerField()),
            ],
            options={
                "indexes": [models.Index(fields=["hour"], name="shadow_count_by_hour")],
            },
        ),
        migrations.CreateModel(
            name="HourlySpending",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "organization_id",
                        "hour",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("organization_id", models.UUIDField()),
                ("hour", models.DateTimeField()),
                ("cost_nano", models.BigIntegerField()),
            ],
            options={
                "indexes": [models.Index(fields=["hour"], name="hourly_spending_by_hour")],
            },
        ),
        migrations.CreateModel(
            name="GuardrailCount",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "guardrail_id",
                        "slot",
                        "reason",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("guardrail_id", models.UUIDField()),
                ("slot", models.DateTimeField()),
                ("reason", models.CharField(max_length=32)),
                ("requests", models.BigIntegerField()),
            ],
            options={
                "indexes": [models.Index(fields=["slot"], name="guardrail_count_by_slot")],
            },
        ),
        migrations.CreateModel(
            name="HistoryLoss",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("worker", models.CharField(max_length=128)),
                ("since", models.DateTimeField()),
                ("until", models.DateTimeField()),
                ("accepted_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="WorkerBeat",
            fields=[
                ("worker", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("number", models.BigIntegerField()),
                ("beat_at", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="TokenSum",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "endpoint_id",
                        "script",
                        "mark",
                        "kind",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("endpoint_id", models.UUIDField()),
                ("script", models.CharField(max_length=32)),
                ("mark", models.CharField(max_length=8)),
                ("kind", models.CharField(max_length=16)),
                ("tokens", models.BigIntegerField()),
            ],
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="endpointhealth",
            trigger=pgtrigger.compiler.Trigger(
                name="stamp",
                sql=config.triggers.TriggerSql(
                    func="NEW.changed := pg_current_xact_id()::text::bigint; RETURN NEW;",
                    hash="76bcddfbc119514df793e4d2c8a6d4e105b334b0",
                    operation="INSERT OR UPDATE",
                    pgid="pgtrigger_stamp_5ed05",
                    table="inference_endpointhealth",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="generation",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_journal WHERE generation_id = OLD.id) THEN\n    \n    IF NOT EXISTS (SELECT 1 FROM inference_journal WHERE generation_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of inference_generation is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="74e3565b993f291697fdd17503cac595b9a6278f",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_86678",
                    table="inference_generation",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="apikeyuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND api_key_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.organization_id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND api_key_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of accounts_apikey is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="9a7973378a8a41cc055f5be13230dc6f81830c62",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_0cad7",
                    table="accounts_apikey",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="memberuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND member_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.organization_id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND member_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of accounts_member is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="82b739ad77da4f435ccf54d07faad9fe6c0b17c7",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_7a29d",
                    table="accounts_member",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="modelendpointuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE model_endpoint_id = OLD.id) THEN\n    PERFORM pg_advisory_xact_lock(6024917533);\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE model_endpoint_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of catalog_modelendpoint is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="a5ccc27e181d99808ac15b15b0977afbd88a5c15",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_fe8ed",
                    table="catalog_modelendpoint",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organizationuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.id AND organization_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.id AND organization_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of accounts_organization is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="4ec754ec6ab2546a699be4b6133158b845116754",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_66227",
                    table="accounts_organization",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="privateendpointuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND private_endpoint_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.organization_id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND private_endpoint_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of endpoints_privateendpoint is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="b38dcada82c06639a458dc7d340c71f042f57f6b",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_a2972",
                    table="endpoints_privateendpoint",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="workspaceuse",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND workspace_id = OLD.id) THEN\n    PERFORM 1 FROM billing_account WHERE organization_id = OLD.organization_id AND kind = 'credits' FOR NO KEY UPDATE;\n    IF NOT EXISTS (SELECT 1 FROM inference_generation WHERE organization_id = OLD.organization_id AND workspace_id = OLD.id) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of accounts_workspace is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="488e9f17b3154cbd5e4f002fd88e4ee52db3ff80",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_44295",
                    table="accounts_workspace",
                    when="BEFORE",
                ),
            ),
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
        pgtrigger.migrations.AddTrigger(
            model_name="privateendpointuse",
            trigger=pgtrigger.compiler.Trigger(
                name="open_meter",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (NEW.settings -> 'routing' IS NOT NULL)",
                    func="INSERT INTO billing_meter (subject_id, organization_id)\nVALUES (NEW.id, NEW.organization_id)\nON CONFLICT (subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="dbd79d3cd304bb68c6612c93b82d878ceb3bf3c8",
                    operation="INSERT OR UPDATE",
                    pgid="pgtrigger_open_meter_7830b",
                    table="endpoints_privateendpoint",
                    when="AFTER",
                ),
            ),
        ),
    ]
