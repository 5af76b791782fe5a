"""Lets running processes notice a new workspace as they notice a changed one."""

from django.db import migrations

FORWARD = """
CREATE CONSTRAINT TRIGGER workspace_opened AFTER INSERT ON accounts_workspace
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_organization_changed();
"""

BACKWARD = "DROP TRIGGER workspace_opened ON accounts_workspace;"


class Migration(migrations.Migration):
    dependencies = [("accounts", "0005_guardrail_budget")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
