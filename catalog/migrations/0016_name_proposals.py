"""Writes "catalogue proposal" as the texts of the console do; the table stays as it is."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("catalog", "0015_drop_repeated_indexes")]

    operations = [
        migrations.AlterModelOptions(
            name="catalogproposal",
            options={"ordering": ("-created_at", "subject"), "verbose_name": "catalogue proposal"},
        ),
    ]
