"""A table for the traffic of public endpoints by hour; the next run of the duty fills it."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0018_health_changes")]

    operations = [
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
    ]
