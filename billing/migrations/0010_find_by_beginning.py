"""Finds rows of the console by the beginnings of their names and by their hashes."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    # An index that is made concurrently lets others write.
    atomic = False

    dependencies = [
        ("accounts", "0001_initial"),
        ("billing", "0009_partitions_of_transfers"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="deposit",
            index=models.Index(fields=["tx_hash"], name="deposit_by_transaction"),
        ),
        AddIndexConcurrently(
            model_name="topup",
            index=models.Index(
                condition=models.Q(("tx_hash", ""), _negated=True),
                fields=["tx_hash"],
                name="top_up_by_transaction",
            ),
        ),
    ]
