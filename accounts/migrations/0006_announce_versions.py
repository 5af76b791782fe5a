"""Notifies running processes of an organization's new version.

Workers of the earlier release do not listen; they compare the version as before.
"""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_versions_of_keys"),
    ]

    operations = [
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="announce_version",
                sql=config.triggers.TriggerSql(
                    condition='WHEN (OLD."routing_version" IS DISTINCT FROM (NEW."routing_version"))',
                    func="PERFORM pg_notify('causeway_versions', NEW.id::text);\nRETURN NULL;",
                    hash="8f49c081201b973f1a912c7f282ffaaebdf6eec5",
                    operation="UPDATE",
                    pgid="pgtrigger_announce_version_df3c6",
                    table="accounts_organization",
                    when="AFTER",
                ),
            ),
        ),
    ]
