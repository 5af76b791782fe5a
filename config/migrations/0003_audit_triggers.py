"""Writes the audit log in the transaction of each change, and keeps it as it was written."""

from django.db import migrations

# Of each table: the columns that name the object, that never show, and that are bookkeeping.
TABLES = (
    ("accounts.organization", "id", "", "routing_version"),
    ("accounts.member", "id", "", ""),
    ("accounts.workspace", "id", "", ""),
    ("accounts.workspacemember", "id", "", ""),
    ("accounts.workspacebudget", "id", "", ""),
    ("accounts.apikey", "id", "digest", ""),
    ("accounts.guardrail", "id", "", ""),
    ("accounts.keyassignment", "id", "", ""),
    ("accounts.memberassignment", "id", "", ""),
    ("accounts.byokcredential", "id", "sealed", ""),
    ("catalog.provider", "id", "sealed_credential", ""),
    ("catalog.languagemodel", "id", "", ""),
    ("catalog.modelendpoint", "id", "", ""),
    ("catalog.priceversion", "id", "", ""),
    ("endpoints.privateendpoint", "id", "", "request_fingerprint,watched_at"),
    ("endusers.enduser", "id", "", ""),
    ("billing.topup", "id", "", "request_fingerprint"),
    ("billing.deposit", "id", "", ""),
    ("billing.chainstate", "chain_id", "", ""),
    ("auth.user", "id", "password", "last_login,date_joined"),
    ("auth.user_groups", "user_id", "", "id"),
    ("auth.user_user_permissions", "user_id", "", "id"),
    ("auth.group", "id", "", ""),
    ("auth.group_permissions", "group_id", "", "id"),
    (
        "otp_totp.totpdevice",
        "id",
        "key",
        "throttling_failure_timestamp,throttling_failure_count,last_used_at,drift,last_t",
    ),
    (
        "otp_static.staticdevice",
        "id",
        "",
        "throttling_failure_timestamp,throttling_failure_count,last_used_at",
    ),
)
# What requests move stays out before the trigger is called at all.
TRANSFERS = ("billing.transfer", "id", "", "")

FUNCTIONS = """
CREATE FUNCTION causeway_audited() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    -- The arguments: the kind, the column that names the object, what is masked, what is left out.
    masked text[] := string_to_array(TG_ARGV[2], ',');
    bookkeeping text[] := string_to_array('created_at,updated_at,' || TG_ARGV[3], ',');
    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;
    was jsonb;
    becomes jsonb;
    owner text;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes
        FROM jsonb_each(to_jsonb(OLD) - bookkeeping) o JOIN jsonb_each(changed) n USING (key)
        WHERE o.value <> n.value;
        IF was IS NULL THEN
            RETURN NULL;
        END IF;
    ELSE
        SELECT jsonb_object_agg(key, value) INTO becomes
        FROM jsonb_each(changed - bookkeeping) WHERE value <> 'null';
        IF TG_OP = 'DELETE' THEN
            was := becomes;
            becomes := NULL;
        END IF;
    END IF;
    SELECT was || coalesce(jsonb_object_agg(key, '********'), '{}') INTO was
    FROM jsonb_each(was) WHERE key = ANY (masked) AND value <> 'null';
    SELECT becomes || coalesce(jsonb_object_agg(key, '********'), '{}') INTO becomes
    FROM jsonb_each(becomes) WHERE key = ANY (masked) AND value <> 'null';
    IF TG_ARGV[0] = 'accounts.organization' THEN
        owner := changed ->> 'id';
    ELSIF changed ? 'organization_id' THEN
        owner := changed ->> 'organization_id';
    ELSIF changed ? 'guardrail_id' THEN
        SELECT organization_id INTO owner FROM accounts_guardrail
        WHERE id = (changed ->> 'guardrail_id')::uuid;
    ELSIF changed ? 'workspace_id' THEN
        SELECT organization_id INTO owner FROM accounts_workspace
        WHERE id = (changed ->> 'workspace_id')::uuid;
    END IF;
    INSERT INTO config_auditentry
        (actor, action, kind, object_id, organization_id, "before", "after", request_id)
    VALUES (
        current_setting('causeway.actor'), current_setting('causeway.action'), TG_ARGV[0],
        changed ->> TG_ARGV[1], owner::uuid, was, becomes,
        current_setting('causeway.request_id')
    );
    RETURN NULL;
END
$$;
CREATE FUNCTION causeway_audit_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is never changed' USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER kept BEFORE UPDATE OR DELETE ON config_auditentry
    FOR EACH ROW EXECUTE FUNCTION causeway_audit_kept();
"""

NO_FUNCTIONS = """
DROP TRIGGER kept ON config_auditentry;
DROP FUNCTION causeway_audit_kept();
DROP FUNCTION causeway_audited();
"""


def audit(kind, key, masked, bookkeeping, *, events="INSERT OR UPDATE OR DELETE", only="true"):
    """The trigger of one table; where nobody is named it costs one comparison."""
    table = kind.replace(".", "_")
    return migrations.RunSQL(
        f"""
        CREATE TRIGGER audited AFTER {events} ON {table} FOR EACH ROW
            WHEN ({only} AND current_setting('causeway.actor', true) <> '')
            EXECUTE FUNCTION causeway_audited('{kind}', '{key}', '{masked}', '{bookkeeping}');
        """,
        f"DROP TRIGGER audited ON {table};",
    )


class Migration(migrations.Migration):
    dependencies = [
        ("config", "0002_audit_log"),
        ("accounts", "0005_guardrail_budget"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("billing", "0004_top_up_triggers"),
        ("catalog", "0002_triggers"),
        ("endpoints", "0002_triggers"),
        ("endusers", "0001_initial"),
        ("otp_static", "0003_add_timestamps"),
        ("otp_totp", "0003_add_timestamps"),
    ]

    operations = [
        migrations.RunSQL(FUNCTIONS, NO_FUNCTIONS),
        *(audit(*table) for table in TABLES),
        audit(*TRANSFERS, events="INSERT", only="NEW.kind IN ('grant', 'refund')"),
    ]
