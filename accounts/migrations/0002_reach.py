import django.contrib.postgres.fields
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.models
import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0001_tables"),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name="organization",
            name="settings_changed",
        ),
        migrations.AddField(
            model_name="organization",
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
            model_name="organization",
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
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="settings_changed",
                sql=config.triggers.TriggerSql(
                    condition='WHEN ((OLD."allowed_networks" IS DISTINCT FROM (NEW."allowed_networks") OR OLD."allowed_providers" IS DISTINCT FROM (NEW."allowed_providers") OR OLD."ca_certificates" IS DISTINCT FROM (NEW."ca_certificates") OR OLD."fallback" IS DISTINCT FROM (NEW."fallback") OR OLD."forbids_training" IS DISTINCT FROM (NEW."forbids_training") OR OLD."ignored_providers" IS DISTINCT FROM (NEW."ignored_providers") OR OLD."requires_zdr" IS DISTINCT FROM (NEW."requires_zdr") OR OLD."suspension_reason" IS DISTINCT FROM (NEW."suspension_reason")))',
                    func="NEW.routing_version := pg_current_xact_id()::text::bigint;\nRETURN NEW;",
                    hash="f085317a1df29d2a773493b7af21efa546b96708",
                    operation="UPDATE",
                    pgid="pgtrigger_settings_changed_9d2c4",
                    table="accounts_organization",
                    when="BEFORE",
                ),
            ),
        ),
    ]
