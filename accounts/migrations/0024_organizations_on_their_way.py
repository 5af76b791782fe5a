"""Finds the organizations whose move to another cell has not ended."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    # An index that is made concurrently lets others write.
    atomic = False

    dependencies = [
        ("accounts", "0023_send_limits"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="organization",
            index=models.Index(
                condition=models.Q(("residence__in", ("leaving", "arriving"))),
                fields=["residence"],
                name="organization_on_its_way",
            ),
        ),
    ]
