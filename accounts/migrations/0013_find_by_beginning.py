"""Finds rows of the console by the beginnings of their names and by their hashes."""

import django.contrib.postgres.indexes
import django.db.models.functions.text
from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    # An index that is made concurrently lets others write.
    atomic = False

    dependencies = [
        ("accounts", "0012_suspension"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="apikey",
            index=models.Index(
                django.contrib.postgres.indexes.OpClass(
                    django.db.models.functions.text.Upper("name"), name="text_pattern_ops"
                ),
                name="api_key_by_name",
            ),
        ),
        AddIndexConcurrently(
            model_name="apikey",
            index=models.Index(fields=["label"], name="api_key_by_label"),
        ),
        AddIndexConcurrently(
            model_name="member",
            index=models.Index(
                django.contrib.postgres.indexes.OpClass(
                    django.db.models.functions.text.Upper("email"), name="text_pattern_ops"
                ),
                name="member_by_email",
            ),
        ),
        AddIndexConcurrently(
            model_name="organization",
            index=models.Index(
                django.contrib.postgres.indexes.OpClass(
                    django.db.models.functions.text.Upper("name"), name="text_pattern_ops"
                ),
                name="organization_by_name",
            ),
        ),
        AddIndexConcurrently(
            model_name="workspace",
            index=models.Index(
                django.contrib.postgres.indexes.OpClass(
                    django.db.models.functions.text.Upper("name"), name="text_pattern_ops"
                ),
                name="workspace_by_name",
            ),
        ),
    ]
