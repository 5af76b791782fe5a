"""Finds the few transfers that are no usage; those that are, the greater part, are not in it."""

from django.db import migrations, models

FORWARD = """
CREATE INDEX CONCURRENTLY transfer_by_kind
ON billing_transfer (kind, id DESC) WHERE NOT (kind = 'usage')
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("billing", "0006_ended_in_place")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(FORWARD, "DROP INDEX CONCURRENTLY transfer_by_kind")
            ],
            state_operations=[
                migrations.AddIndex(
                    "transfer",
                    models.Index(
                        condition=models.Q(("kind", "usage"), _negated=True),
                        fields=["kind", "-id"],
                        name="transfer_by_kind",
                    ),
                )
            ],
        ),
    ]
