from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0004_pool_meters"),
    ]

    operations = [
        migrations.CreateModel(
            name="TokenSum",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "endpoint_id",
                        "script",
                        "mark",
                        "kind",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("endpoint_id", models.UUIDField()),
                ("script", models.CharField(max_length=32)),
                ("mark", models.CharField(max_length=8)),
                ("kind", models.CharField(max_length=16)),
                ("tokens", models.BigIntegerField()),
            ],
        ),
    ]
