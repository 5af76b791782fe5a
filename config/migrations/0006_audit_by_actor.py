"""Finds what somebody did, and who did anything."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("config", "0005_grant_requests")]

    operations = [
        AddIndexConcurrently(
            "auditentry", models.Index(fields=["actor", "-id"], name="audit_by_actor")
        ),
    ]
