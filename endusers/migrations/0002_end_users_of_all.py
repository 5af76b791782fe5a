"""Lists the end users of all organizations, latest first, and finds them by how they begin."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [("endusers", "0001_initial")]

    operations = [
        AddIndexConcurrently(
            "enduser", models.Index(fields=["created_at", "id"], name="end_user_latest")
        ),
        AddIndexConcurrently(
            "enduser", models.Index(fields=["user", "id"], name="end_user_by_beginning")
        ),
    ]
