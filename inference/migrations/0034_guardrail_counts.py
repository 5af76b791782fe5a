"""Adds the counts of what guardrails judge."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0033_hourly_spending"),
    ]

    operations = [
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
    ]
