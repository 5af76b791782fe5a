"""Lets a round begin with the range of blocks that the node let through in the one before."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0007_transfers_by_kind")]

    operations = [
        migrations.AddField(
            "chainstate",
            "span",
            models.PositiveIntegerField(
                editable=False,
                help_text="How many blocks the node lets be read at once.",
                null=True,
            ),
        ),
    ]
