"""Lists the end users of all organizations, latest first, and finds them by how they begin."""

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

    dependencies = [("endusers", "0001_initial")]

    operations = [
        index(
            "enduser",
            models.Index(fields=["created_at", "id"], name="end_user_latest"),
            "endusers_enduser (created_at, id)",
        ),
        index(
            "enduser",
            models.Index(fields=["user", "id"], name="end_user_by_beginning"),
            'endusers_enduser ("user", id)',
        ),
    ]
