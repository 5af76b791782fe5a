"""Finds the generations of an end user; made while generations are stored, which it never blocks."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("inference", "0006_hourly_usage")]

    operations = [
        AddIndexConcurrently(
            "generation",
            models.Index(
                condition=models.Q(("end_user__isnull", False)),
                fields=["end_user", "-created_at"],
                name="generation_by_end_user",
            ),
        ),
    ]
