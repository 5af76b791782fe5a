"""Sums failures and latency by day, and the shares of endpoints and keys by hour.

Processes of the earlier release leave the new columns empty and mark no hour as detailed.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0019_endpoint_hours"),
    ]

    operations = [
        migrations.AddField(
            model_name="dailyusage",
            name="upstream_nano",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="dailyusage", name="failed", field=models.BigIntegerField(null=True)
        ),
        migrations.AddField(
            model_name="dailyusage", name="latency_ms", field=models.BigIntegerField(null=True)
        ),
        migrations.AddField(
            model_name="dailyusage", name="timed", field=models.BigIntegerField(null=True)
        ),
        migrations.AddField(
            model_name="hourlyusage",
            name="is_detailed",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="The hour has a HourlyShare for its parts.",
            ),
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
    ]
