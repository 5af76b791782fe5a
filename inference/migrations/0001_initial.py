"""Generations, feedback, endpoint health and usage."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
        ("catalog", "0001_initial"),
        ("endpoints", "0001_initial"),
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
            ],
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
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.apikey",
                    ),
                ),
                (
                    "attestation",
                    models.ForeignKey(
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
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
                (
                    "price",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="catalog.priceversion",
                    ),
                ),
                (
                    "private_endpoint",
                    models.ForeignKey(
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
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.workspace",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
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
            ],
        ),
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
            ],
        ),
        migrations.AddIndex(
            model_name="generation",
            index=models.Index(
                fields=["organization", "-created_at"], name="generation_by_organization"
            ),
        ),
        migrations.AddIndex(
            model_name="generation",
            index=models.Index(fields=["api_key", "created_at"], name="generation_by_key"),
        ),
        migrations.AddIndex(
            model_name="generation",
            index=models.Index(
                condition=models.Q(("end_user__isnull", False)),
                fields=["end_user", "-created_at"],
                name="generation_by_end_user",
            ),
        ),
        migrations.AddConstraint(
            model_name="generation",
            constraint=models.CheckConstraint(
                condition=models.Q(("cost_nano__gte", 0), ("upstream_cost_nano__gte", 0)),
                name="generation_cost_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="generation",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("private_endpoint", None), ("model_endpoint", None), _connector="XOR"
                ),
                name="generation_one_endpoint",
            ),
        ),
        migrations.AddConstraint(
            model_name="feedback",
            constraint=models.UniqueConstraint(
                fields=("generation", "category"), name="feedback_once"
            ),
        ),
        migrations.AddIndex(
            model_name="dailyusage",
            index=models.Index(fields=["organization", "by_end_user", "day"], name="daily_usage"),
        ),
        migrations.AddIndex(
            model_name="dailyusage",
            index=models.Index(
                condition=models.Q(("by_end_user", True)),
                fields=["organization", "end_user", "day"],
                name="daily_usage_of_end_user",
            ),
        ),
        migrations.AddIndex(
            model_name="dailyusage",
            index=models.Index(
                condition=models.Q(("by_end_user", False)),
                fields=["day"],
                include=("organization", "model", "requests", "cost_nano"),
                name="daily_usage_ranking",
            ),
        ),
        migrations.AddIndex(
            model_name="dailyusage",
            index=models.Index(
                condition=models.Q(("by_end_user", True), ("end_user__isnull", False)),
                fields=["day"],
                include=("organization", "end_user", "requests", "cost_nano"),
                name="daily_usage_of_end_users",
            ),
        ),
    ]
