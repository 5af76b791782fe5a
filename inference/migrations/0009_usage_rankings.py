"""Lets the console rank models, organizations and end users by indexes alone."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("inference", "0008_journal_of_all_pending")]

    operations = [
        AddIndexConcurrently(
            "dailyusage",
            models.Index(
                condition=models.Q(("by_end_user", False)),
                fields=["day"],
                include=["organization", "model", "requests", "cost_nano"],
                name="daily_usage_ranking",
            ),
        ),
        AddIndexConcurrently(
            "dailyusage",
            models.Index(
                condition=models.Q(("by_end_user", True), ("end_user__isnull", False)),
                fields=["day"],
                include=["organization", "end_user", "requests", "cost_nano"],
                name="daily_usage_of_end_users",
            ),
        ),
    ]
