"""Gives the tokens of pictures that a model draws a rate of their own."""

import django.core.validators
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0003_held_version"),
    ]

    operations = [
        migrations.RemoveConstraint(
            model_name="priceversion",
            name="price_not_negative",
        ),
        migrations.AddField(
            model_name="priceversion",
            name="image_output",
            field=models.DecimalField(
                blank=True,
                decimal_places=30,
                help_text="Empty: tokens of a drawn picture cost as completion tokens.",
                max_digits=36,
                null=True,
                validators=[django.core.validators.MinValueValidator(0)],
            ),
        ),
        migrations.AddConstraint(
            model_name="priceversion",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("completion__gte", 0),
                    ("image__gte", 0),
                    ("prompt__gte", 0),
                    ("request__gte", 0),
                    models.Q(("cache_read", None), ("cache_read__gte", 0), _connector="OR"),
                    models.Q(("cache_write", None), ("cache_write__gte", 0), _connector="OR"),
                    models.Q(("image_output", None), ("image_output__gte", 0), _connector="OR"),
                ),
                name="price_not_negative",
            ),
        ),
    ]
