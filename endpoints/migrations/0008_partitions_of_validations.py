"""Divides validations by quarter; the present table becomes the first partition."""

from django.db import migrations

from config.partitions.conversion import divide, unite
from config.partitions.declarations import Partitioning
from config.partitions.spans import QUARTER

VALIDATIONS = Partitioning("endpoints_validation", "created_at", QUARTER)


def forward(apps, schema_editor):
    divide(VALIDATIONS, ("id", "created_at"))


def backward(apps, schema_editor):
    unite(VALIDATIONS, "id")


class Migration(migrations.Migration):
    # Validating the bounds of a large table takes long, and locks it only against other changes.
    atomic = False
    dependencies = [("endpoints", "0007_unchecked_validations")]

    operations = [migrations.RunPython(forward, backward, elidable=False)]
