"""Gives each key the digests that find it, apart from its public hash.

The first digest of a key is its hash. Its pepper is not known: the key tells when it is used.
"""

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0002_bound_domains"),
    ]

    operations = [
        migrations.CreateModel(
            name="KeyDigest",
            fields=[
                (
                    "digest",
                    models.CharField(
                        help_text="HMAC-SHA256 of the key.",
                        max_length=64,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                (
                    "pepper",
                    models.CharField(
                        help_text="The id of the pepper; empty until the key is used after an upgrade.",
                        max_length=16,
                        null=True,
                    ),
                ),
                (
                    "api_key",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="digests",
                        to="accounts.apikey",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
            },
        ),
        migrations.AlterField(
            model_name="apikey",
            name="digest",
            field=models.CharField(
                editable=False,
                help_text="The public hash of the key. It never changes; a KeyDigest finds the key.",
                max_length=64,
                unique=True,
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="apikey",
            trigger=pgtrigger.compiler.Trigger(
                name="first_digest",
                sql=config.triggers.TriggerSql(
                    func="INSERT INTO accounts_keydigest (digest, api_key_id)\nVALUES (NEW.digest, NEW.id) ON CONFLICT (digest) DO NOTHING;\nRETURN NULL;",
                    hash="84eb4a8f977811a9f3a83ca3fa7be4423d11bcbd",
                    operation="INSERT",
                    pgid="pgtrigger_first_digest_30549",
                    table="accounts_apikey",
                    when="AFTER",
                ),
            ),
        ),
        migrations.RunSQL(
            """
            INSERT INTO accounts_keydigest (digest, api_key_id)
            SELECT digest, id FROM accounts_apikey
            ON CONFLICT (digest) DO NOTHING;
            """,
            migrations.RunSQL.noop,
        ),
    ]
