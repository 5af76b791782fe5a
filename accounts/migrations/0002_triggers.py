"""Lets running processes notice that what an organization may route to has changed."""

from django.db import migrations

# Deferred to the commit: the organization's row is locked last. The version is the id of the
# changing transaction, so two changes never share one.
FORWARD = """
CREATE FUNCTION causeway_organization_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    row_organization uuid := COALESCE(NEW.organization_id, OLD.organization_id);
BEGIN
    UPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint
    WHERE id = row_organization
      AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER organization_changed
    AFTER INSERT OR UPDATE OR DELETE ON accounts_byokcredential
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_organization_changed();
"""

BACKWARD = """
DROP TRIGGER organization_changed ON accounts_byokcredential;
DROP FUNCTION causeway_organization_changed();
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
