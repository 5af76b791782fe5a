"""Keeps in a journal what the request says of its usage, such as the characters to speak.

Processes of the earlier release leave the column empty; such a generation is estimated by its size.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0024_partitions_of_hours")]

    operations = [
        migrations.AddField(
            model_name="journal",
            name="units",
            field=models.JSONField(
                help_text="What the request says of its usage: characters, search units, images, …",
                null=True,
            ),
        ),
    ]
