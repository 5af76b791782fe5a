"""The outbox: events that people are to be told."""

import django.db.models.functions.datetime
from django.db import migrations, models

import config.events.outbox


class Migration(migrations.Migration):
    dependencies = [
        ("config", "0007_departures"),
    ]

    operations = [
        migrations.CreateModel(
            name="Event",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=config.events.outbox.new_event_id,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "organization_id",
                    models.UUIDField(editable=False, null=True, verbose_name="organization ID"),
                ),
                ("kind", models.CharField(editable=False, max_length=64)),
                ("data", models.JSONField(editable=False)),
                ("once_key", models.CharField(editable=False, max_length=255, null=True)),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
                ("dispatched_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("dispatched_at", None)),
                        fields=["id"],
                        name="event_waiting",
                    ),
                    models.Index(fields=["organization_id", "-id"], name="event_by_organization"),
                    models.Index(fields=["kind", "-id"], name="event_by_kind"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("once_key__isnull", False)),
                        fields=("once_key",),
                        name="event_once",
                    )
                ],
            },
        ),
    ]
