"""Lists the private endpoints of all organizations and their validations, latest first."""

from django.db import migrations, models


def index(model, state, on):
    """Makes an index while rows are written, which it never blocks."""
    return migrations.SeparateDatabaseAndState(
        database_operations=[
            migrations.RunSQL(
                f"CREATE INDEX CONCURRENTLY {state.name} ON {on}",
                f"DROP INDEX CONCURRENTLY {state.name}",
            )
        ],
        state_operations=[migrations.AddIndex(model, state)],
    )


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("endpoints", "0002_triggers")]

    operations = [
        index(
            "privateendpoint",
            models.Index(
                condition=models.Q(("deleted_at", None)),
                fields=["created_at", "id"],
                name="private_endpoint_latest",
            ),
            "endpoints_privateendpoint (created_at, id) WHERE deleted_at IS NULL",
        ),
        index(
            "validation",
            models.Index(fields=["created_at", "id"], name="validation_latest"),
            "endpoints_validation (created_at, id)",
        ),
    ]
