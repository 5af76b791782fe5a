"""The limits of time of calls, which endpoints may have of their own."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0006_announce_versions"),
        ("catalog", "0008_time_limits"),
        ("endpoints", "0005_proven_parameters"),
    ]

    operations = [
        migrations.AddField(
            model_name="privateendpoint",
            name="connect_timeout",
            field=models.PositiveIntegerField(
                blank=True, help_text="Seconds for name, connection and TLS.", null=True
            ),
        ),
        migrations.AddField(
            model_name="privateendpoint",
            name="first_event_timeout",
            field=models.PositiveIntegerField(
                blank=True, help_text="Seconds until the first event of a stream.", null=True
            ),
        ),
        migrations.AddField(
            model_name="privateendpoint",
            name="headers_timeout",
            field=models.PositiveIntegerField(
                blank=True, help_text="Seconds until the headers of a stream.", null=True
            ),
        ),
        migrations.AddField(
            model_name="privateendpoint",
            name="idle_timeout",
            field=models.PositiveIntegerField(
                blank=True, help_text="Seconds of silence within a stream.", null=True
            ),
        ),
        migrations.AddField(
            model_name="privateendpoint",
            name="total_timeout",
            field=models.PositiveIntegerField(
                blank=True, help_text="Seconds for a whole answer.", null=True
            ),
        ),
        migrations.AddConstraint(
            model_name="privateendpoint",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(
                        ("connect_timeout__isnull", True),
                        ("connect_timeout__range", (1, 86400)),
                        _connector="OR",
                    ),
                    models.Q(
                        ("headers_timeout__isnull", True),
                        ("headers_timeout__range", (1, 86400)),
                        _connector="OR",
                    ),
                    models.Q(
                        ("first_event_timeout__isnull", True),
                        ("first_event_timeout__range", (1, 86400)),
                        _connector="OR",
                    ),
                    models.Q(
                        ("idle_timeout__isnull", True),
                        ("idle_timeout__range", (1, 86400)),
                        _connector="OR",
                    ),
                    models.Q(
                        ("total_timeout__isnull", True),
                        ("total_timeout__range", (1, 86400)),
                        _connector="OR",
                    ),
                ),
                name="private_endpoint_times",
            ),
        ),
    ]
