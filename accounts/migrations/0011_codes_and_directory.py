"""Makes routing codes unique, and fills the directory, while requests go on.

Each statement commits by itself, so no request waits for a million rows; a migration that was killed
can be run again.
"""

from django.db import migrations, models

# An attempt that was killed leaves an invalid index behind.
DROP = "DROP INDEX CONCURRENTLY IF EXISTS organization_code_once"
CREATE = (
    "CREATE UNIQUE INDEX CONCURRENTLY organization_code_once ON accounts_organization (code) "
    "WHERE code IS NOT NULL"
)
BATCH = 10_000
FILL = """
WITH batch AS MATERIALIZED (
    SELECT id, name, slug, code, residence FROM accounts_organization
    WHERE id > %s ORDER BY id LIMIT %s
),

listed AS (
    INSERT INTO accounts_directoryentry (id, cell, organization_id, name, slug, code, residence)
    SELECT 'home:' || id, 'home', id, name, slug, code, residence FROM batch
    ON CONFLICT DO NOTHING
)

SELECT id FROM batch ORDER BY id DESC LIMIT 1
"""


def fill_directory(apps, schema_editor):
    """Lists the organizations of earlier releases; triggers list all others."""
    with schema_editor.connection.cursor() as cursor:
        last = "00000000-0000-0000-0000-000000000000"
        while last is not None:
            cursor.execute(FILL, [last, BATCH])
            [last] = cursor.fetchone() or [None]


class Migration(migrations.Migration):
    atomic = False
    dependencies = [
        ("accounts", "0010_cells"),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(DROP, migrations.RunSQL.noop),
                migrations.RunSQL(CREATE, DROP),
            ],
            state_operations=[
                migrations.AddConstraint(
                    model_name="organization",
                    constraint=models.UniqueConstraint(
                        condition=models.Q(("code__isnull", False)),
                        fields=("code",),
                        name="organization_code_once",
                    ),
                ),
            ],
        ),
        migrations.RunPython(fill_directory, migrations.RunPython.noop),
    ]
