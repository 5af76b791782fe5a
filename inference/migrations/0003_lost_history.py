"""Adds the heartbeats of workers, and the losses of history that they notice."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0002_storage"),
    ]

    operations = [
        migrations.CreateModel(
            name="HistoryLoss",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False)),
                ("worker", models.CharField(max_length=128)),
                ("since", models.DateTimeField()),
                ("until", models.DateTimeField()),
                ("accepted_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="WorkerBeat",
            fields=[
                ("worker", models.CharField(max_length=128, primary_key=True, serialize=False)),
                ("number", models.BigIntegerField()),
                ("beat_at", models.DateTimeField()),
            ],
        ),
    ]
