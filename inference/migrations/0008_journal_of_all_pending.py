"""Gives every pending generation its journal, which finds them from now on.

So no index has what settlement changes, and its update touches no index.
"""

import django.db.models.deletion
from django.contrib.postgres.operations import RemoveIndexConcurrently
from django.db import migrations, models

JOURNALS = """
INSERT INTO inference_journal (generation_id, prompt_tokens, completion_tokens, beat_at)
SELECT id, 0, 0, created_at FROM inference_generation WHERE status = 'pending'
ON CONFLICT DO NOTHING
"""

# Room for what settlement writes anew beside the old; a journal lives for seconds, and without
# being vacuumed would be long to read for those who look for the oldest.
ROOM = """
ALTER TABLE inference_generation SET (fillfactor = 75);
ALTER TABLE inference_journal SET (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000
);
"""

NO_ROOM = """
ALTER TABLE inference_journal RESET (
    autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold
);
ALTER TABLE inference_generation RESET (fillfactor);
"""

BY_ORGANIZATION = """
CREATE INDEX CONCURRENTLY inference_generation_organization_id_258e3d97
ON inference_generation (organization_id)
"""

# Nobody looks for a journal by how its name begins.
BY_BEGINNING = """
CREATE INDEX CONCURRENTLY inference_journal_generation_id_7375eac8_like
ON inference_journal (generation_id varchar_pattern_ops)
"""


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("accounts", "0006_new_workspaces"),
        ("inference", "0007_generation_by_end_user"),
    ]

    operations = [
        migrations.RunSQL(JOURNALS, migrations.RunSQL.noop),
        migrations.AddField(
            "journal",
            "images",
            models.IntegerField(db_default=0, default=0, help_text="In the prompt."),
        ),
        migrations.RunSQL(ROOM, NO_ROOM),
        migrations.RunSQL(
            "DROP INDEX CONCURRENTLY IF EXISTS inference_journal_generation_id_7375eac8_like",
            BY_BEGINNING,
        ),
        RemoveIndexConcurrently("generation", "generation_pending"),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                # What generation_by_organization finds as well.
                migrations.RunSQL(
                    "DROP INDEX CONCURRENTLY IF EXISTS "
                    "inference_generation_organization_id_258e3d97",
                    BY_ORGANIZATION,
                )
            ],
            state_operations=[
                migrations.AlterField(
                    "generation",
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                )
            ],
        ),
    ]
