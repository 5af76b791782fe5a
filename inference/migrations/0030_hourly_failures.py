"""Sums errors by hour, provider and type; those of earlier hours are not summed again."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0029_stored_texts"),
    ]

    operations = [
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
    ]
