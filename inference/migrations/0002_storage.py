"""Storage parameters, after the first migration has created its indexes."""

from django.db import migrations

# A journal row lives for seconds; frequent vacuuming keeps the search for the oldest rows short.
# Endpoint health is worth nothing after a crash. Nobody searches journals and generations by the
# beginning of their key but as a range, which the primary key serves.
STORAGE = """
ALTER TABLE inference_journal SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000
);
ALTER TABLE inference_endpointhealth SET UNLOGGED;
DROP INDEX IF EXISTS inference_journal_generation_id_7375eac8_like;
DROP INDEX IF EXISTS inference_generation_id_41f897b4_like;
"""


class Migration(migrations.Migration):
    dependencies = [("inference", "0001_first_release")]

    operations = [migrations.RunSQL(STORAGE, migrations.RunSQL.noop)]
