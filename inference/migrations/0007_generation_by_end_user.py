"""Finds the generations of an end user; made while generations are stored, which it never blocks."""

from django.db import migrations, models

FORWARD = """
CREATE INDEX CONCURRENTLY generation_by_end_user
ON inference_generation (end_user, created_at DESC) WHERE end_user IS NOT NULL
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("inference", "0006_hourly_usage")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(FORWARD, "DROP INDEX CONCURRENTLY generation_by_end_user")
            ],
            state_operations=[
                migrations.AddIndex(
                    "generation",
                    models.Index(
                        condition=models.Q(("end_user__isnull", False)),
                        fields=["end_user", "-created_at"],
                        name="generation_by_end_user",
                    ),
                )
            ],
        ),
    ]
