"""Removes the triggers that kept a moving organization still."""

import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("endpoints", "0010_drop_repeated_indexes"),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name="attestation",
            name="stay_still",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="privateendpoint",
            name="stay_still",
        ),
    ]
