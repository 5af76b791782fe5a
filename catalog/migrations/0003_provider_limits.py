"""Limits that a provider gave to the operator's account."""

from django.core.validators import MinValueValidator
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0002_changes")]

    operations = [
        migrations.AddField(
            model_name="provider",
            name="requests_per_minute",
            field=models.IntegerField(
                blank=True,
                help_text="Of the operator's account at the provider. Empty: no limit is known.",
                null=True,
                validators=[MinValueValidator(1)],
            ),
        ),
        migrations.AddField(
            model_name="provider",
            name="tokens_per_minute",
            field=models.BigIntegerField(
                blank=True,
                help_text="Prompt and completion tokens. Empty: no limit is known.",
                null=True,
                validators=[MinValueValidator(1)],
            ),
        ),
    ]
