"""Removes the balances that organizations brought along, and the triggers of their moves."""

import pgtrigger.migrations
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0013_arrivals"),
    ]

    operations = [
        migrations.DeleteModel(
            name="Arrival",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="grantrequest",
            name="stay_still",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="topup",
            name="stay_still",
        ),
    ]
