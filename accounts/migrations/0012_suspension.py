"""Lets operators suspend organizations.

Processes of the earlier release serve a suspended organization until they are replaced.
"""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0011_codes_and_directory"),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(model_name="organization", name="settings_changed"),
        migrations.AddField(
            model_name="organization",
            name="suspended_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="organization",
            name="suspended_by",
            field=models.CharField(db_default="", default="", editable=False, max_length=255),
        ),
        migrations.AddField(
            model_name="organization",
            name="suspension_reason",
            field=models.CharField(
                db_default="",
                default="",
                editable=False,
                help_text="The sentence that refused callers read; empty unless it is suspended.",
                max_length=500,
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="settings_changed",
                sql=config.triggers.TriggerSql(
                    condition='WHEN ((OLD."allowed_providers" IS DISTINCT FROM (NEW."allowed_providers") OR OLD."forbids_training" IS DISTINCT FROM (NEW."forbids_training") OR OLD."ignored_providers" IS DISTINCT FROM (NEW."ignored_providers") OR OLD."requires_zdr" IS DISTINCT FROM (NEW."requires_zdr") OR OLD."residence" IS DISTINCT FROM (NEW."residence") OR OLD."suspension_reason" IS DISTINCT FROM (NEW."suspension_reason")))',
                    func="NEW.routing_version := pg_current_xact_id()::text::bigint;\nRETURN NEW;",
                    hash="4e5cd8d9d5db15f46844b239c4dbe196830cf994",
                    operation="UPDATE",
                    pgid="pgtrigger_settings_changed_9d2c4",
                    table="accounts_organization",
                    when="BEFORE",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="organization",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("suspended_at", None), ("suspension_reason", "")),
                    models.Q(
                        ("suspended_at__isnull", False),
                        models.Q(("suspension_reason", ""), _negated=True),
                    ),
                    _connector="OR",
                ),
                name="organization_suspended_with_reason",
            ),
        ),
    ]
