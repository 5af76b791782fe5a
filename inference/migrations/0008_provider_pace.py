"""What was sent to providers with the operator's credential in the last minute."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0007_room_for_updates")]

    operations = [
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
    ]
