"""Removes the tables, columns and triggers of several installations."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0026_validate_ceilings"),
    ]

    operations = [
        migrations.DeleteModel(
            name="Cell",
        ),
        migrations.DeleteModel(
            name="CellBeat",
        ),
        migrations.DeleteModel(
            name="CellIdentity",
        ),
        migrations.DeleteModel(
            name="DirectoryEntry",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="broadcastdestination",
            name="stay_still",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="member",
            name="stay_still",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="organization",
            name="list_in_directory",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="organization",
            name="update_directory",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="organization",
            name="audit",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="organization",
            name="settings_changed",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="organization",
            name="keep_still",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="preset",
            name="stay_still",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="presetversion",
            name="stay_still",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="subscription",
            name="stay_still",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="workspacemember",
            name="stay_still",
        ),
        migrations.RemoveConstraint(
            model_name="organization",
            name="organization_code_once",
        ),
        migrations.RemoveIndex(
            model_name="organization",
            name="organization_on_its_way",
        ),
        migrations.RemoveField(
            model_name="organization",
            name="code",
        ),
        migrations.RemoveField(
            model_name="organization",
            name="other_cell",
        ),
        migrations.RemoveField(
            model_name="organization",
            name="residence",
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="settings_changed",
                sql=config.triggers.TriggerSql(
                    condition='WHEN ((OLD."allowed_providers" IS DISTINCT FROM (NEW."allowed_providers") OR OLD."forbids_training" IS DISTINCT FROM (NEW."forbids_training") OR OLD."ignored_providers" IS DISTINCT FROM (NEW."ignored_providers") OR OLD."requires_zdr" IS DISTINCT FROM (NEW."requires_zdr") OR OLD."suspension_reason" IS DISTINCT FROM (NEW."suspension_reason")))',
                    func="NEW.routing_version := pg_current_xact_id()::text::bigint;\nRETURN NEW;",
                    hash="a71b5ab24659c53612e707087925dbf788f02927",
                    operation="UPDATE",
                    pgid="pgtrigger_settings_changed_9d2c4",
                    table="accounts_organization",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organization",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'routing_version']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'routing_version']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'accounts.organization',\n    changed ->> 'id', (changed ->> 'id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="733bae590a975a3a325b62c5f71781b9b9cf2975",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_6867b",
                    table="accounts_organization",
                    when="AFTER",
                ),
            ),
        ),
    ]
