"""Finds the few transfers that are no usage; those that are, the greater part, are not in it."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("billing", "0006_ended_in_place")]

    operations = [
        AddIndexConcurrently(
            "transfer",
            models.Index(
                condition=models.Q(("kind", "usage"), _negated=True),
                fields=["kind", "-id"],
                name="transfer_by_kind",
            ),
        ),
    ]
