import django.contrib.postgres.fields
from django.contrib.postgres.operations import AddConstraintNotValid, ValidateConstraint
from django.db import migrations, models

import config.models


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0001_tables"),
    ]

    operations = [
        migrations.AddField(
            model_name="provider",
            name="allowed_networks",
            field=django.contrib.postgres.fields.ArrayField(
                base_field=models.CharField(
                    max_length=43, validators=[config.models.require_network]
                ),
                blank=True,
                help_text="Networks that connections may reach although they are not public, such as 10.0.0.5/32. UPSTREAM_ALLOWED_NETWORKS has those of everybody.",
                null=True,
                size=None,
            ),
        ),
        migrations.AddField(
            model_name="provider",
            name="ca_certificates",
            field=models.TextField(
                blank=True,
                db_default="",
                default="",
                help_text="Authorities in PEM that are trusted besides the public ones.",
                max_length=65536,
                validators=[config.models.require_authorities],
                verbose_name="CA certificates",
            ),
        ),
        migrations.AddField(
            model_name="provider",
            name="is_keyless",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="The server answers without a credential, and is sent none of the operator's.",
                verbose_name="takes no key",
            ),
        ),
        AddConstraintNotValid(
            model_name="provider",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("is_keyless", False),
                    models.Q(
                        ("dialect__in", ["openai", "anthropic", "gemini"]),
                        ("sealed_credential", None),
                    ),
                    _connector="OR",
                ),
                name="provider_keyless_has_no_credential",
            ),
        ),
        ValidateConstraint(model_name="provider", name="provider_keyless_has_no_credential"),
    ]
