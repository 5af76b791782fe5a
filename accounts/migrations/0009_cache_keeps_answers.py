"""Lets only a workspace that keeps answers cache them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0008_presets"),
    ]

    operations = [
        migrations.AddConstraint(
            model_name="workspace",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("is_response_caching_enabled", False),
                    ("is_answer_storage_enabled", True),
                    _connector="OR",
                ),
                name="workspace_cache_keeps_answers",
            ),
        ),
    ]
