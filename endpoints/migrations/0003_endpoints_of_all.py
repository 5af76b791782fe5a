"""Lists the private endpoints of all organizations and their validations, latest first."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("endpoints", "0002_triggers")]

    operations = [
        AddIndexConcurrently(
            "privateendpoint",
            models.Index(
                condition=models.Q(("deleted_at", None)),
                fields=["created_at", "id"],
                name="private_endpoint_latest",
            ),
        ),
        AddIndexConcurrently(
            "validation", models.Index(fields=["created_at", "id"], name="validation_latest")
        ),
    ]
