"""Lets the validation of an endpoint lie in any partition: no foreign key checks it any more."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("endpoints", "0006_time_limits")]

    operations = [
        migrations.AlterField(
            model_name="privateendpoint",
            name="validation",
            field=models.ForeignKey(
                blank=True,
                db_constraint=False,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="endpoints.validation",
            ),
        ),
    ]
