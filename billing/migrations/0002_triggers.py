"""Keeps transfers as they were made, and opens accounts and meters with what they belong to."""

from django.db import migrations

TRANSFERS = """
CREATE FUNCTION causeway_transfer_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.status = 'pending' AND NEW.status IN ('posted', 'voided')
       AND (NEW.id, NEW.organization_id, NEW.kind, NEW.debit_id, NEW.credit_id, NEW.amount_nano,
            NEW.reference, NEW.actor, NEW.note, NEW.created_at)
           IS NOT DISTINCT FROM
           (OLD.id, OLD.organization_id, OLD.kind, OLD.debit_id, OLD.credit_id, OLD.amount_nano,
            OLD.reference, OLD.actor, OLD.note, OLD.created_at)
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'a transfer is never changed, but ended once'
        USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER ended_once BEFORE UPDATE OR DELETE ON billing_transfer
    FOR EACH ROW EXECUTE FUNCTION causeway_transfer_ended();
"""

NO_TRANSFERS = """
DROP TRIGGER ended_once ON billing_transfer;
DROP FUNCTION causeway_transfer_ended();
"""

ACCOUNTS = """
CREATE FUNCTION causeway_open_accounts() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_account (organization_id, kind)
    SELECT NEW.id, unnest(ARRAY['credits', 'usage', 'grants', 'deposits', 'write_off']);
    RETURN NULL;
END
$$;
CREATE TRIGGER open_accounts AFTER INSERT ON accounts_organization
    FOR EACH ROW EXECUTE FUNCTION causeway_open_accounts();
INSERT INTO billing_account (organization_id, kind)
SELECT id, unnest(ARRAY['credits', 'usage', 'grants', 'deposits', 'write_off'])
FROM accounts_organization;
"""

NO_ACCOUNTS = """
DROP TRIGGER open_accounts ON accounts_organization;
DROP FUNCTION causeway_open_accounts();
"""

METERS = """
CREATE FUNCTION causeway_open_meter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO billing_meter (subject_id, organization_id) VALUES (NEW.id, NEW.organization_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER open_meter AFTER INSERT ON accounts_apikey
    FOR EACH ROW EXECUTE FUNCTION causeway_open_meter();
CREATE TRIGGER open_meter AFTER INSERT ON accounts_workspace
    FOR EACH ROW EXECUTE FUNCTION causeway_open_meter();
CREATE TRIGGER open_meter AFTER INSERT ON accounts_member
    FOR EACH ROW EXECUTE FUNCTION causeway_open_meter();
INSERT INTO billing_meter (subject_id, organization_id)
SELECT id, organization_id FROM accounts_apikey
UNION ALL SELECT id, organization_id FROM accounts_workspace
UNION ALL SELECT id, organization_id FROM accounts_member;
"""

NO_METERS = """
DROP TRIGGER open_meter ON accounts_member;
DROP TRIGGER open_meter ON accounts_workspace;
DROP TRIGGER open_meter ON accounts_apikey;
DROP FUNCTION causeway_open_meter();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0001_initial"),
        ("accounts", "0004_governance_triggers"),
    ]

    operations = [
        migrations.RunSQL(TRANSFERS, NO_TRANSFERS),
        migrations.RunSQL(ACCOUNTS, NO_ACCOUNTS),
        migrations.RunSQL(METERS, NO_METERS),
    ]
