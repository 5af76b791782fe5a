"""Lets organizations, workspaces and guardrails say where requests for private models may go."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0027_one_installation"),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name="organization",
            name="settings_changed",
        ),
        migrations.AddField(
            model_name="guardrail",
            name="require_private",
            field=models.BooleanField(
                blank=True,
                help_text="Requests for a model with a private endpoint never go to public ones.",
                null=True,
            ),
        ),
        migrations.AddField(
            model_name="organization",
            name="fallback",
            field=models.CharField(
                blank=True,
                choices=[("none", "none"), ("listed", "listed"), ("any", "any")],
                help_text="none: requests for a model with a private endpoint never go to public ones. listed: only to providers that the request names in provider.order or provider.only. any: to all. Empty inherits; the strictest level that is set decides, and listed where none is set.",
                max_length=16,
                null=True,
                verbose_name="fallback from private models",
            ),
        ),
        migrations.AddField(
            model_name="workspace",
            name="fallback",
            field=models.CharField(
                blank=True,
                choices=[("none", "none"), ("listed", "listed"), ("any", "any")],
                help_text="none: requests for a model with a private endpoint never go to public ones. listed: only to providers that the request names in provider.order or provider.only. any: to all. Empty inherits; the strictest level that is set decides, and listed where none is set.",
                max_length=16,
                null=True,
                verbose_name="fallback from private models",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="settings_changed",
                sql=config.triggers.TriggerSql(
                    condition='WHEN ((OLD."allowed_providers" IS DISTINCT FROM (NEW."allowed_providers") OR OLD."fallback" IS DISTINCT FROM (NEW."fallback") OR OLD."forbids_training" IS DISTINCT FROM (NEW."forbids_training") OR OLD."ignored_providers" IS DISTINCT FROM (NEW."ignored_providers") OR OLD."requires_zdr" IS DISTINCT FROM (NEW."requires_zdr") OR OLD."suspension_reason" IS DISTINCT FROM (NEW."suspension_reason")))',
                    func="NEW.routing_version := pg_current_xact_id()::text::bigint;\nRETURN NEW;",
                    hash="411cc32bbddd52aa3c326cc3eaaa3d6c738c278b",
                    operation="UPDATE",
                    pgid="pgtrigger_settings_changed_9d2c4",
                    table="accounts_organization",
                    when="BEFORE",
                ),
            ),
        ),
    ]
