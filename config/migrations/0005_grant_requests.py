"""Audits grants that wait for a second operator, and lets the roles see them."""

from django.db import migrations

from config.console import roles

FORWARD = """
CREATE TRIGGER audited AFTER INSERT OR UPDATE OR DELETE ON billing_grantrequest FOR EACH ROW
    WHEN (current_setting('causeway.actor', true) <> '')
    EXECUTE FUNCTION causeway_audited('billing.grantrequest', 'id', '', '');
"""

BACKWARD = "DROP TRIGGER audited ON billing_grantrequest;"


def establish(apps, schema_editor):
    roles.establish(apps)


class Migration(migrations.Migration):
    dependencies = [
        ("config", "0004_roles"),
        ("billing", "0005_grant_requests"),
    ]

    operations = [
        migrations.RunSQL(FORWARD, BACKWARD),
        migrations.RunPython(establish, migrations.RunPython.noop),
    ]
