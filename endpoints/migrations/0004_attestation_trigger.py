"""Keeps declarations as they were made."""

from django.db import migrations

FORWARD = """
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON endpoints_attestation
    FOR EACH ROW EXECUTE FUNCTION causeway_append_only();
"""

BACKWARD = "DROP TRIGGER append_only ON endpoints_attestation;"


class Migration(migrations.Migration):
    dependencies = [("endpoints", "0003_attestations"), ("catalog", "0002_triggers")]

    operations = [migrations.RunSQL(FORWARD, BACKWARD)]
