"""Lets the deletion of an endpoint move the version of its organization."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("endpoints", "0003_bind_credentials"),
    ]

    operations = [
        pgtrigger.migrations.AddTrigger(
            model_name="privateendpoint",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump_on_delete",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;",
                    hash="be860315b922f74c5637e3f736eebbd30c25570a",
                    operation="DELETE",
                    pgid="pgtrigger_version_bump_on_delete_e2674",
                    table="endpoints_privateendpoint",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
    ]
