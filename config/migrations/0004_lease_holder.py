"""Leases name their holder and when it renewed them.

Processes of the previous release, which know neither column, may take leases meanwhile.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("config", "0003_sign_in_limits")]

    operations = [
        migrations.AddField(
            model_name="lease",
            name="holder",
            field=models.CharField(db_default="", default="", max_length=128),
        ),
        migrations.AddField(
            model_name="lease", name="renewed_at", field=models.DateTimeField(null=True)
        ),
    ]
