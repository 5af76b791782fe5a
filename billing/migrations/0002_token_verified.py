"""Adds what a chain's contract said of its decimals."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0001_tables"),
    ]

    operations = [
        migrations.AddField(
            model_name="chainstate",
            name="token_checked_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="chainstate",
            name="token_verified",
            field=models.CharField(
                db_default="",
                default="",
                editable=False,
                help_text="The contract and the decimals that the chain confirmed.",
                max_length=48,
            ),
        ),
    ]
