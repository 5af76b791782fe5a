"""How endpoints do right now, for a minute: nothing that a crash may not lose."""

import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0004_feedback")]

    operations = [
        migrations.CreateModel(
            name="EndpointHealth",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "endpoint_id",
                        "slot",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("endpoint_id", models.UUIDField()),
                ("slot", models.SmallIntegerField()),
                ("bucket", models.BigIntegerField(help_text="Unix time in five seconds.")),
                ("successes", models.IntegerField()),
                ("failures", models.IntegerField()),
                (
                    "latencies",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.IntegerField(), help_text="In milliseconds.", size=None
                    ),
                ),
                (
                    "speeds",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(), help_text="In tokens per second.", size=None
                    ),
                ),
                ("retry_at", models.FloatField(help_text="In Unix seconds, or 0.")),
            ],
        ),
        migrations.RunSQL(
            "ALTER TABLE inference_endpointhealth SET UNLOGGED", migrations.RunSQL.noop
        ),
    ]
