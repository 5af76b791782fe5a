"""Divides generations by month; the present table becomes the first partition."""

from django.db import migrations

from config.partitions.conversion import divide, unite
from config.partitions.declarations import Partitioning
from inference.ids import id_bound, read_id_bound

GENERATIONS = Partitioning(
    "inference_generation",
    "id",
    write_bound=id_bound,
    read_bound=read_id_bound,
    storage={"fillfactor": 40},
)


def forward(apps, schema_editor):
    divide(GENERATIONS)


def backward(apps, schema_editor):
    unite(GENERATIONS, "id")


class Migration(migrations.Migration):
    # Validating the bounds of a large table takes long, and locks it only against other changes.
    atomic = False
    dependencies = [("inference", "0014_unpinned_generations")]

    operations = [migrations.RunPython(forward, backward, elidable=False)]
