"""Lets running processes notice that a routable private endpoint appeared, changed or went."""

from django.db import migrations

# Drafts are routed to by nobody: creating or importing them moves no version.
FORWARD = """
CREATE CONSTRAINT TRIGGER organization_changed AFTER UPDATE ON endpoints_privateendpoint
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.status <> 'draft' OR NEW.status <> 'draft')
    EXECUTE FUNCTION causeway_organization_changed();
"""

BACKWARD = "DROP TRIGGER organization_changed ON endpoints_privateendpoint;"


class Migration(migrations.Migration):
    dependencies = [("endpoints", "0001_initial"), ("accounts", "0002_triggers")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
