"""Lets a workspace permit that its answers are kept.

Workers of the earlier release keep none.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0006_announce_versions"),
    ]

    operations = [
        migrations.AddField(
            model_name="workspace",
            name="is_answer_storage_enabled",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Answers are kept, encrypted and for a limited time, for requests that are sent again with their Idempotency-Key and for the response cache.",
                verbose_name="keep answers",
            ),
        ),
        migrations.AddField(
            model_name="workspace",
            name="is_response_caching_enabled",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="Requests use the response cache unless they say otherwise. Needs kept answers.",
                verbose_name="cache responses",
            ),
        ),
    ]
