"""Lets the audit log alone keep the history of accounts."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("config", "0015_shared_views"),
    ]

    operations = [
        migrations.DeleteModel(
            name="AccountEntry",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="auditedgroup",
            name="audit",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="auditedgrouppermission",
            name="audit",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="auditeduser",
            name="audit",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="auditedusergroup",
            name="audit",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="auditeduserpermission",
            name="audit",
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditedgroup",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.group',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="84a0c15882b599be62f69d0c54094a3f1e93f62d",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_7ecb6",
                    table="auth_group",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditedgrouppermission",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'id']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'id']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.group_permissions',\n    changed ->> 'group_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="16acfda0780592daeecef6773a659752cd72a7ee",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_4cd6e",
                    table="auth_group_permissions",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditeduser",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'last_login', 'date_joined']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'last_login', 'date_joined']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['password']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['password']) AND value <> 'null';\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.user',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="4fd34e2ae6c38bd3d42d244377ad39c3b9919735",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_4baa7",
                    table="auth_user",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditedusergroup",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'id']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'id']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.user_groups',\n    changed ->> 'user_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="94f173f82b9859566358fd0acf913e5271217148",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_058ed",
                    table="auth_user_groups",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="auditeduserpermission",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'id']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'id']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.user_user_permissions',\n    changed ->> 'user_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="5883f547b7dc93d33fcaef6fb0b96a23f8cc1896",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_fbf6c",
                    table="auth_user_user_permissions",
                    when="AFTER",
                ),
            ),
        ),
    ]
