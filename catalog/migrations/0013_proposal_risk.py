"""Stores why a person should look twice at a proposal."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("catalog", "0012_bumps_of_replicated_rows")]

    operations = [
        migrations.AlterField(
            model_name="catalogproposal",
            name="reason",
            field=models.CharField(
                max_length=16,
                choices=[
                    ("rise", "a price rises"),
                    ("fall", "a price falls to a tenth or less"),
                    ("unpriced", "the list has no price"),
                    ("vanished", "no longer in the list"),
                    ("new", "a new endpoint"),
                    ("change", "a change"),
                ],
                editable=False,
            ),
        ),
        migrations.AddField(
            model_name="catalogproposal",
            name="risk",
            field=models.CharField(
                max_length=64,
                default="",
                db_default="",
                editable=False,
                help_text="Why to look twice. Empty for an ordinary change.",
            ),
        ),
    ]
