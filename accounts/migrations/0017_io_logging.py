"""Lets a workspace say for how many days its inputs and outputs are logged.

Workers of the earlier release log none.
"""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0016_broadcast_destinations"),
    ]

    operations = [
        migrations.AddField(
            model_name="workspace",
            name="io_logging_retention_days",
            field=models.PositiveSmallIntegerField(
                blank=True,
                help_text="Texts are deleted after this many days. Empty for as many as the operator allows.",
                null=True,
                verbose_name="days of retention",
            ),
        ),
        migrations.AlterField(
            model_name="workspace",
            name="io_logging_api_key_ids",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.BigIntegerField(),
                blank=True,
                help_text="Numbers of API keys. Empty for all keys of the workspace.",
                null=True,
                size=None,
                verbose_name="keys that are logged",
            ),
        ),
        migrations.AlterField(
            model_name="workspace",
            name="io_logging_sampling_rate",
            field=models.DecimalField(
                db_default=1,
                decimal_places=4,
                default=1,
                help_text="The part of the requests that is stored: 1 for all, 0.01 for one in a hundred.",
                max_digits=5,
                verbose_name="sampling rate",
            ),
        ),
        migrations.AlterField(
            model_name="workspace",
            name="is_observability_io_logging_enabled",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Prompts and completions are stored, encrypted and for a limited time. Never those of requests under zero data retention.",
                verbose_name="log inputs and outputs",
            ),
        ),
        migrations.AddConstraint(
            model_name="workspace",
            constraint=models.CheckConstraint(
                condition=models.Q(("io_logging_retention_days__gt", 0)),
                name="workspace_retention_days",
            ),
        ),
    ]
