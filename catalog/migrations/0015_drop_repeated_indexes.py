"""Drops indexes whose columns another index of the same table begins with."""

import django.db.models.deletion
from django.db import migrations, models

# The name of each index, its table and its column.
INDEXES = (
    ("catalog_modelalias_organization_id_560e40fb", "catalog_modelalias", "organization_id"),
    ("catalog_modelendpoint_model_id_ec042fcd", "catalog_modelendpoint", "model_id"),
)


class Migration(migrations.Migration):
    # An index that is dropped concurrently waits for no writer and stops none.
    atomic = False

    dependencies = [
        ("accounts", "0020_drop_repeated_indexes"),
        ("catalog", "0014_unclear_models"),
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
                    model_name="modelalias",
                    name="organization",
                    field=models.ForeignKey(
                        blank=True,
                        db_index=False,
                        help_text="Empty: an alias of the operator, which applies to all organizations.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="model_aliases",
                        to="accounts.organization",
                    ),
                ),
                migrations.AlterField(
                    model_name="modelendpoint",
                    name="model",
                    field=models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="endpoints",
                        to="catalog.languagemodel",
                    ),
                ),
            ],
        ),
    ]
