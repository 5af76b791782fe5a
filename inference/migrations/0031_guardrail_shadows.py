"""Adds shadows of guardrails, which count what they would refuse."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0030_hourly_failures"),
    ]

    operations = [
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
    ]
