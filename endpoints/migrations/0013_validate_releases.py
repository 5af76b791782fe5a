"""Validates the check of 0012, which locked no row."""

from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("endpoints", "0012_private_models"),
    ]

    operations = [
        ValidateConstraint(
            model_name="privateendpoint", name="private_endpoint_released_after_deletion"
        ),
    ]
