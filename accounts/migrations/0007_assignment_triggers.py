"""Lets running processes notice who is assigned to which guardrail."""

from django.db import migrations

# By way of the guardrail: a member or a key that goes takes its assignment along.
FORWARD = """
CREATE FUNCTION causeway_assignment_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE accounts_organization o SET routing_version = pg_current_xact_id()::text::bigint
    FROM accounts_guardrail g
    WHERE g.id = COALESCE(NEW.guardrail_id, OLD.guardrail_id) AND o.id = g.organization_id
      AND o.routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;
    RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER assignment_changed
    AFTER INSERT OR UPDATE OR DELETE ON accounts_keyassignment
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_assignment_changed();
CREATE CONSTRAINT TRIGGER assignment_changed
    AFTER INSERT OR UPDATE OR DELETE ON accounts_memberassignment
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_assignment_changed();
"""

BACKWARD = """
DROP TRIGGER assignment_changed ON accounts_memberassignment;
DROP TRIGGER assignment_changed ON accounts_keyassignment;
DROP FUNCTION causeway_assignment_changed();
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0006_new_workspaces")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
