"""Drops indexes whose columns another index of the same table begins with."""

import django.db.models.deletion
from django.db import migrations, models

# The name of each index, its table and its column.
INDEXES = (
    (
        "endpoints_privateendpoint_organization_id_efb96a12",
        "endpoints_privateendpoint",
        "organization_id",
    ),
    (
        "endpoints_validationslot_organization_id_c1c433b1",
        "endpoints_validationslot",
        "organization_id",
    ),
)


class Migration(migrations.Migration):
    # An index that is dropped concurrently waits for no writer and stops none.
    atomic = False

    dependencies = [
        ("accounts", "0020_drop_repeated_indexes"),
        ("endpoints", "0009_stay_still_while_moving"),
    ]

    operations = [
        *(
            migrations.RunSQL(
                f"DROP INDEX CONCURRENTLY IF EXISTS {name}",
                f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {table} ({column})",
            )
            for name, table, column in INDEXES
        ),
        # That of a divided table cannot be dropped concurrently; it takes milliseconds.
        migrations.RunSQL(
            "DROP INDEX IF EXISTS endpoints_validation_endpoint_id_9d85a3a2",
            "CREATE INDEX IF NOT EXISTS endpoints_validation_endpoint_id_9d85a3a2 ON endpoints_validation (endpoint_id)",
        ),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.AlterField(
                    model_name="privateendpoint",
                    name="organization",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="private_endpoints",
                        to="accounts.organization",
                    ),
                ),
                migrations.AlterField(
                    model_name="validation",
                    name="endpoint",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="validations",
                        to="endpoints.privateendpoint",
                    ),
                ),
                migrations.AlterField(
                    model_name="validationslot",
                    name="organization",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
            ],
        ),
    ]
