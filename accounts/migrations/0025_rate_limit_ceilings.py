"""Adds the highest limits that operators allow. Nobody knows who set the limits that exist."""

from django.contrib.postgres.operations import AddConstraintNotValid
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0024_organizations_on_their_way"),
    ]

    operations = [
        migrations.AddField(
            model_name="ratelimit",
            name="concurrent_requests_ceiling",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="ratelimit",
            name="requests_per_day_ceiling",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="ratelimit",
            name="requests_per_minute_ceiling",
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="ratelimit",
            name="tokens_per_minute_ceiling",
            field=models.BigIntegerField(null=True),
        ),
        AddConstraintNotValid(
            model_name="ratelimit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("requests_per_minute_ceiling", None),
                        models.Q(
                            ("requests_per_minute__isnull", False),
                            ("requests_per_minute__lte", models.F("requests_per_minute_ceiling")),
                        ),
                        _connector="OR",
                    ),
                    models.Q(
                        ("tokens_per_minute_ceiling", None),
                        models.Q(
                            ("tokens_per_minute__isnull", False),
                            ("tokens_per_minute__lte", models.F("tokens_per_minute_ceiling")),
                        ),
                        _connector="OR",
                    ),
                    models.Q(
                        ("requests_per_day_ceiling", None),
                        models.Q(
                            ("requests_per_day__isnull", False),
                            ("requests_per_day__lte", models.F("requests_per_day_ceiling")),
                        ),
                        _connector="OR",
                    ),
                    models.Q(
                        ("concurrent_requests_ceiling", None),
                        models.Q(
                            ("concurrent_requests__isnull", False),
                            ("concurrent_requests__lte", models.F("concurrent_requests_ceiling")),
                        ),
                        _connector="OR",
                    ),
                ),
                name="rate_limit_within_ceiling",
            ),
        ),
    ]
