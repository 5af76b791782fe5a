"""Sums the spending of organizations by hour; that of earlier hours is not summed again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0032_reading_of_texts"),
    ]

    operations = [
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
    ]
