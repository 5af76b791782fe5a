"""The caller's own trace of a request."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0009_units")]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="trace",
            field=models.TextField(
                editable=False,
                help_text="The caller's own trace of the request, as JSON.",
                null=True,
            ),
        ),
    ]
