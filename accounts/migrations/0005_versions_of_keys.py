"""Lets a change of an API key move the version of its organization."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0004_rate_limits"),
    ]

    operations = [
        migrations.AlterField(
            model_name="organization",
            name="routing_version",
            field=models.BigIntegerField(
                default=0,
                editable=False,
                help_text="Triggers raise it when the keys, endpoints or rules of the organization change.",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="apikey",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="cfaf7e064a63b2020ce01a2164469791e424611f",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_1151a",
                    table="accounts_apikey",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
    ]
