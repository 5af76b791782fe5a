"""The counters of failed sign-ins."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("config", "0002_digest_session_keys")]

    operations = [
        migrations.CreateModel(
            name="SignInLimit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "scope",
                    models.CharField(
                        choices=[
                            ("address", "address"),
                            ("account", "account"),
                            ("pair", "account and address"),
                        ],
                        editable=False,
                        max_length=8,
                    ),
                ),
                ("account", models.CharField(default="", editable=False, max_length=150)),
                (
                    "network",
                    models.CharField(
                        default="",
                        editable=False,
                        help_text="An IPv6 address by its /64.",
                        max_length=64,
                        verbose_name="address",
                    ),
                ),
                ("failures", models.PositiveIntegerField(editable=False)),
                ("resets_at", models.DateTimeField(editable=False)),
                ("signed_in_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "verbose_name": "sign-in limit",
                "ordering": ("-resets_at",),
                "indexes": [models.Index(fields=["-resets_at"], name="sign_in_limit_by_time")],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("scope", "account", "network"), name="sign_in_limit_once"
                    )
                ],
            },
        ),
    ]
