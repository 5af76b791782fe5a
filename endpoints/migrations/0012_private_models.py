"""Keeps a model private until the owner of its endpoints releases it."""

from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0028_private_models"),
        ("catalog", "0017_bumps_as_others"),
        ("endpoints", "0011_changes_need_no_residence"),
    ]

    operations = [
        migrations.AddField(
            model_name="privateendpoint",
            name="fallback",
            field=models.CharField(
                blank=True,
                choices=[("none", "none"), ("listed", "listed"), ("any", "any")],
                help_text="none: requests for a model with a private endpoint never go to public ones. listed: only to providers that the request names in provider.order or provider.only. any: to all. Empty inherits; the strictest level that is set decides, and listed where none is set.",
                max_length=16,
                null=True,
                verbose_name="fallback from private models",
            ),
        ),
        migrations.AddField(
            model_name="privateendpoint",
            name="released_at",
            field=models.DateTimeField(
                editable=False,
                help_text="When its owner let requests for the model go to public endpoints again.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="privateendpoint",
            name="released_by",
            field=models.CharField(db_default="", default="", editable=False, max_length=255),
        ),
        AddConstraintNotValid(
            model_name="privateendpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("released_at", None),
                    models.Q(("activated_at__isnull", False), ("deleted_at__isnull", False)),
                    _connector="OR",
                ),
                name="private_endpoint_released_after_deletion",
            ),
        ),
    ]
