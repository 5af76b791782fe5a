"""Divides the sums of hours by year; the present table becomes the first partition."""

from django.db import migrations

from config.partitions.conversion import divide, unite
from config.partitions.declarations import Partitioning
from config.partitions.spans import YEAR

HOURS = Partitioning("inference_hourlyusage", "hour", YEAR)


def forward(apps, schema_editor):
    divide(HOURS)


def backward(apps, schema_editor):
    unite(HOURS, "hour")


class Migration(migrations.Migration):
    # Validating the bounds of a large table takes long, and locks it only against other changes.
    atomic = False
    dependencies = [("inference", "0023_hourly_shares")]

    operations = [migrations.RunPython(forward, backward, elidable=False)]
