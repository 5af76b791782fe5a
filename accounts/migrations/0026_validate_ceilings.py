"""Validates the check of 0025, which locked no row."""

from django.contrib.postgres.operations import ValidateConstraint
from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0025_rate_limit_ceilings"),
    ]

    operations = [
        ValidateConstraint(model_name="ratelimit", name="rate_limit_within_ceiling"),
    ]
