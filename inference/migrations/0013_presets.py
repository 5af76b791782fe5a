"""The preset that a request named."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0012_kept_answers")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="preset_id",
            field=models.UUIDField(help_text="The preset that the request named.", null=True),
        ),
    ]
