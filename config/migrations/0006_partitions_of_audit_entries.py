"""Divides audit entries by quarter; the present table becomes the first partition."""

from django.db import migrations

from config.partitions.conversion import divide, unite
from config.partitions.declarations import Partitioning
from config.partitions.spans import QUARTER

ENTRIES = Partitioning("config_auditentry", "at", QUARTER)


def forward(apps, schema_editor):
    divide(ENTRIES, ("id", "at"))


def backward(apps, schema_editor):
    unite(ENTRIES, "id")


class Migration(migrations.Migration):
    # Validating the bounds of a large table takes long, and locks it only against other changes.
    atomic = False
    dependencies = [("config", "0005_lease_outcomes")]

    operations = [migrations.RunPython(forward, backward, elidable=False)]
