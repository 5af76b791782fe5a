"""Drops indexes whose columns another index of the same table begins with."""

import django.db.models.deletion
from django.db import migrations, models

# The name of each index, its table and its column.
INDEXES = (("billing_topup_organization_id_f28e5053", "billing_topup", "organization_id"),)


class Migration(migrations.Migration):
    # An index that is dropped concurrently waits for no writer and stops none.
    atomic = False

    dependencies = [
        ("accounts", "0020_drop_repeated_indexes"),
        ("billing", "0011_stay_still_while_moving"),
    ]

    operations = [
        *(
            migrations.RunSQL(
                f"DROP INDEX CONCURRENTLY IF EXISTS {name}",
                f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {table} ({column})",
            )
            for name, table, column in INDEXES
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="topup",
                    name="organization",
                    field=models.ForeignKey(
                        db_index=False,
                        editable=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="top_ups",
                        to="accounts.organization",
                    ),
                ),
            ],
        ),
    ]
