"""Drops the indexes that others do as well, and those that every ended transfer had to touch."""

import django.db.models.deletion
from django.contrib.postgres.operations import RemoveIndexConcurrently
from django.db import migrations, models

# Room for the version that is current beside the one before it.
ROOM = """
ALTER TABLE billing_transfer SET (fillfactor = 85);
ALTER TABLE billing_account SET (fillfactor = 50);
ALTER TABLE billing_meter SET (fillfactor = 50);
"""

NO_ROOM = """
ALTER TABLE billing_meter RESET (fillfactor);
ALTER TABLE billing_account RESET (fillfactor);
ALTER TABLE billing_transfer RESET (fillfactor);
"""


def drop(table: str, name: str) -> migrations.RunSQL:
    return migrations.RunSQL(
        f"DROP INDEX CONCURRENTLY IF EXISTS {name}",
        f"CREATE INDEX CONCURRENTLY {name} ON {table} (organization_id)",
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("accounts", "0006_new_workspaces"),
        ("billing", "0005_grant_requests"),
    ]

    operations = [
        migrations.RunSQL(ROOM, NO_ROOM),
        RemoveIndexConcurrently("transfer", "transfer_pending"),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                drop("billing_account", "billing_account_organization_id_3edcf266"),
                drop("billing_transfer", "billing_transfer_organization_id_18ff81f7"),
            ],
            state_operations=[
                migrations.AlterField(
                    "account",
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="accounts",
                        to="accounts.organization",
                    ),
                ),
                migrations.AlterField(
                    "transfer",
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        editable=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="transfers",
                        to="accounts.organization",
                    ),
                ),
            ],
        ),
    ]
