"""Removes the trigger that kept a moving organization still."""

import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("endusers", "0003_drop_repeated_indexes"),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name="enduser",
            name="stay_still",
        ),
    ]
