"""Since when heartbeats reach the database."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("inference", "0003_cancelled_usage")]

    operations = [
        migrations.CreateModel(
            name="Uptime",
            fields=[
                ("id", models.SmallIntegerField(primary_key=True, serialize=False)),
                ("since", models.DateTimeField()),
                ("beat_at", models.DateTimeField()),
            ],
        ),
    ]
