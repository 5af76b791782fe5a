"""Finds what somebody did, and who did anything."""

from django.db import migrations, models

FORWARD = """
CREATE INDEX CONCURRENTLY audit_by_actor
ON config_auditentry (actor, id DESC)
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("config", "0005_grant_requests")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(FORWARD, "DROP INDEX CONCURRENTLY audit_by_actor")
            ],
            state_operations=[
                migrations.AddIndex(
                    "auditentry", models.Index(fields=["actor", "-id"], name="audit_by_actor")
                )
            ],
        ),
    ]
