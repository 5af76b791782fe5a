"""Remembers idempotent requests, and keeps answers for them and for the response cache.

Workers of the earlier release write none of these columns and tables.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0011_traces"),
    ]

    operations = [
        migrations.AddField(
            model_name="generation",
            name="cached_from",
            field=models.CharField(
                help_text="The generation whose answer was given again, from the response cache.",
                max_length=48,
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="generation",
            name="retry_of",
            field=models.CharField(
                help_text="The generation that the caller's SDK sent again after a lost connection.",
                max_length=48,
                null=True,
            ),
        ),
        migrations.CreateModel(
            name="IdempotentRequest",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("api_key_id", models.UUIDField()),
                ("route", models.CharField(max_length=64)),
                ("key", models.CharField(db_collation="C", max_length=255)),
                (
                    "fingerprint",
                    models.BinaryField(help_text="A digest of the body and of what changes it."),
                ),
                ("generation_id", models.CharField(db_collation="C", max_length=48)),
                ("is_kept", models.BooleanField(help_text="Its workspace keeps answers.")),
                ("claimed_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(fields=["generation_id"], name="idempotent_by_generation"),
                    models.Index(fields=["expires_at"], name="idempotent_by_expiry"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("api_key_id", "route", "key"), name="idempotent_request_once"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="KeptAnswer",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("organization_id", models.UUIDField()),
                ("generation_id", models.CharField(db_collation="C", max_length=48)),
                ("cache_key", models.BinaryField(null=True)),
                ("endpoint_id", models.UUIDField(null=True)),
                ("sealed", models.BinaryField()),
                (
                    "size",
                    models.IntegerField(
                        help_text="What it counts against the organization's limit."
                    ),
                ),
                ("created_at", models.DateTimeField()),
                ("expires_at", models.DateTimeField()),
            ],
            options={
                "indexes": [
                    models.Index(
                        fields=["organization_id", "id"],
                        include=("cache_key", "size"),
                        name="kept_answer_by_organization",
                    ),
                    models.Index(fields=["expires_at"], name="kept_answer_by_expiry"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("cache_key__isnull", False)),
                        fields=("organization_id", "cache_key"),
                        name="kept_answer_cached_once",
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("cache_key__isnull", True)),
                        fields=("generation_id",),
                        name="kept_answer_once",
                    ),
                ],
            },
        ),
    ]
