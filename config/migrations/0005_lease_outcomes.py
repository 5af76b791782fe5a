"""Leases record when their duty last succeeded, and what it found.

Processes of the previous release write none of it: to them every duty seems to be as old as this
migration, until a newer process has done it once.
"""

import django.contrib.postgres.functions
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("config", "0004_lease_holder")]

    operations = [
        migrations.AddField(
            model_name="lease", name="every_seconds", field=models.FloatField(null=True)
        ),
        migrations.AddField(
            model_name="lease",
            name="succeeded_at",
            field=models.DateTimeField(
                db_default=django.contrib.postgres.functions.TransactionNow()
            ),
        ),
        migrations.AddField(
            model_name="lease",
            name="failures",
            field=models.IntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="lease", name="result", field=models.BigIntegerField(null=True)
        ),
    ]
