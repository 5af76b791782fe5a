"""Storage parameters, after the first migration has created its indexes."""

from django.db import migrations

# Settlement updates a generation in place, in free space of its page. A journal row lives for
# seconds; frequent vacuuming keeps the search for the oldest rows short. Endpoint health is worth
# nothing after a crash. Nobody searches journals by the beginning of their key.
STORAGE = """
ALTER TABLE inference_generation SET (fillfactor = 75);
ALTER TABLE inference_journal SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000
);
ALTER TABLE inference_endpointhealth SET UNLOGGED;
DROP INDEX inference_journal_generation_id_7375eac8_like;
"""


class Migration(migrations.Migration):
    dependencies = [("inference", "0001_initial")]

    operations = [migrations.RunSQL(STORAGE, migrations.RunSQL.noop)]
