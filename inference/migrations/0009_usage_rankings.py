"""Lets the console rank models, organizations and end users by indexes alone."""

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

    dependencies = [("inference", "0008_journal_of_all_pending")]

    operations = [
        index(
            "dailyusage",
            models.Index(
                condition=models.Q(("by_end_user", False)),
                fields=["day"],
                include=["organization", "model", "requests", "cost_nano"],
                name="daily_usage_ranking",
            ),
            "inference_dailyusage (day) INCLUDE (organization_id, model, requests, cost_nano) WHERE NOT by_end_user",
        ),
        index(
            "dailyusage",
            models.Index(
                condition=models.Q(("by_end_user", True), ("end_user__isnull", False)),
                fields=["day"],
                include=["organization", "end_user", "requests", "cost_nano"],
                name="daily_usage_of_end_users",
            ),
            "inference_dailyusage (day) INCLUDE (organization_id, end_user, requests, cost_nano) WHERE by_end_user AND end_user IS NOT NULL",
        ),
    ]
