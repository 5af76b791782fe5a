"""Lets running processes notice what changed of routable endpoints; keeps declarations as made."""

from django.db import migrations

# Drafts are routed to by nobody: creating or importing them moves no version.
FORWARD = """
CREATE CONSTRAINT TRIGGER organization_changed AFTER UPDATE ON endpoints_privateendpoint
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.status <> 'draft' OR NEW.status <> 'draft')
    EXECUTE FUNCTION causeway_organization_changed();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON endpoints_attestation
    FOR EACH ROW EXECUTE FUNCTION causeway_append_only();
"""

BACKWARD = """
DROP TRIGGER append_only ON endpoints_attestation;
DROP TRIGGER organization_changed ON endpoints_privateendpoint;
"""


class Migration(migrations.Migration):
    dependencies = [
        ("endpoints", "0001_initial"),
        ("accounts", "0002_triggers"),
        ("catalog", "0002_triggers"),
    ]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
