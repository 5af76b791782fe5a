"""A table of the history of accounts, which the cells share."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("config", "0013_workspace_wide_guardrails"),
    ]

    operations = [
        migrations.CreateModel(
            name="AccountEntry",
            fields=[
                ("id", models.BigIntegerField(editable=False, primary_key=True, serialize=False)),
                ("at", models.DateTimeField(editable=False)),
                ("actor", models.CharField(editable=False, max_length=255)),
                ("kind", models.CharField(editable=False, max_length=100)),
                ("object_id", models.CharField(editable=False, max_length=255)),
                ("before", models.JSONField(editable=False, null=True)),
                ("after", models.JSONField(editable=False, null=True)),
            ],
            options={
                "default_permissions": (),
            },
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
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nWITH entry AS (\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.group',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n)\nRETURNING id, at, actor, kind, object_id, \"before\", \"after\"\n)\nINSERT INTO config_accountentry (id, at, actor, kind, object_id, \"before\", \"after\")\nSELECT id, at, actor, kind, object_id, \"before\", \"after\" FROM entry;\nRETURN NULL;",
                    hash="9c4d3d822f0e89e54b596d73334b4dbd86bf0af7",
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
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'id']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'id']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nWITH entry AS (\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.group_permissions',\n    changed ->> 'group_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n)\nRETURNING id, at, actor, kind, object_id, \"before\", \"after\"\n)\nINSERT INTO config_accountentry (id, at, actor, kind, object_id, \"before\", \"after\")\nSELECT id, at, actor, kind, object_id, \"before\", \"after\" FROM entry;\nRETURN NULL;",
                    hash="faa20f456e9f7eb23c46d66964f88f1b98b79278",
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
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'last_login', 'date_joined']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'last_login', 'date_joined']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nSELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was\nFROM jsonb_each(was) WHERE key = ANY (ARRAY['password']) AND value <> 'null';\nSELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes\nFROM jsonb_each(becomes) WHERE key = ANY (ARRAY['password']) AND value <> 'null';\nWITH entry AS (\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.user',\n    changed ->> 'id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n)\nRETURNING id, at, actor, kind, object_id, \"before\", \"after\"\n)\nINSERT INTO config_accountentry (id, at, actor, kind, object_id, \"before\", \"after\")\nSELECT id, at, actor, kind, object_id, \"before\", \"after\" FROM entry;\nRETURN NULL;",
                    hash="686d04d023965ff4bbb7ce0f919a63adb773cf02",
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
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'id']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'id']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nWITH entry AS (\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.user_groups',\n    changed ->> 'user_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n)\nRETURNING id, at, actor, kind, object_id, \"before\", \"after\"\n)\nINSERT INTO config_accountentry (id, at, actor, kind, object_id, \"before\", \"after\")\nSELECT id, at, actor, kind, object_id, \"before\", \"after\" FROM entry;\nRETURN NULL;",
                    hash="e5628462e6fc378e952c7758a42cf47a4ce3f35e",
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
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'id']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'id']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nWITH entry AS (\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'auth.user_user_permissions',\n    changed ->> 'user_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n)\nRETURNING id, at, actor, kind, object_id, \"before\", \"after\"\n)\nINSERT INTO config_accountentry (id, at, actor, kind, object_id, \"before\", \"after\")\nSELECT id, at, actor, kind, object_id, \"before\", \"after\" FROM entry;\nRETURN NULL;",
                    hash="73f14e7b45eda031dcd11065fc811e50b4dbe807",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_fbf6c",
                    table="auth_user_user_permissions",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="accountentry",
            index=models.Index(fields=["kind", "object_id"], name="account_entry_by_object"),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="accountentry",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="RAISE EXCEPTION 'the history of accounts is never changed' USING ERRCODE = 'restrict_violation';",
                    hash="779062c90ae8198f5ce1f461b43868c386498341",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_85cbf",
                    table="config_accountentry",
                    when="BEFORE",
                ),
            ),
        ),
        # The triggers above have locked the tables, so no entry is written by the old ones any more.
        migrations.RunSQL(
            """
            INSERT INTO config_accountentry (id, at, actor, kind, object_id, "before", "after")
            SELECT id, at, actor, kind, object_id, "before", "after" FROM config_auditentry
            WHERE kind IN (
                'auth.user', 'auth.group', 'auth.user_groups', 'auth.user_user_permissions',
                'auth.group_permissions'
            )
            """,
            migrations.RunSQL.noop,
        ),
    ]
