"""Divides transfers by the month of their generations; the present table is the first partition.

A range has no rows without a value. So old grants get a reference first, while requests and grants
go on; new grants have none and lie in the partition for odd rows.
"""

from django.db import connection, migrations, transaction

from billing.models.ledger import OF_GENERATIONS, read_reference_bound, reference_bound
from config.partitions.conversion import divide, unite
from config.partitions.declarations import Partitioning
from config.partitions.tables import is_partitioned

TRANSFERS = Partitioning(
    "billing_transfer",
    "reference",
    write_bound=reference_bound,
    read_bound=read_reference_bound,
    storage={"fillfactor": 60},
    values=OF_GENERATIONS,
)
KEY = ("id", "reference")
BATCH = 10_000

# A partition has rows without a reference for ever, so the trigger is only for the plain table.
NAME_GRANTS = """
CREATE OR REPLACE FUNCTION causeway_name_grant_1() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.reference IS NULL AND TG_TABLE_NAME = 'billing_transfer' THEN
        NEW.reference := 'credit:' || NEW.id;
    END IF;
    RETURN NEW;
END
$$;
DROP TRIGGER IF EXISTS name_grant ON billing_transfer;
CREATE TRIGGER name_grant BEFORE INSERT ON billing_transfer
    FOR EACH ROW EXECUTE FUNCTION causeway_name_grant_1();
COMMENT ON TRIGGER name_grant ON billing_transfer IS 'until the table is divided';
"""
DONE_NAMING = """
DROP TRIGGER IF EXISTS name_grant ON billing_transfer;
DROP FUNCTION IF EXISTS causeway_name_grant_1();
"""
# The function of the trigger that lets nobody change a transfer.
FIND_GUARD = """
SELECT p.oid::regprocedure::text, p.prosrc FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgrelid = 'billing_transfer'::regclass AND p.proname LIKE 'pgtrigger_append_only%%'
"""
LET_NAME = """
IF TG_OP = 'UPDATE' AND OLD.reference IS NULL AND NEW.reference = 'credit:' || OLD.id
    AND to_jsonb(NEW) - 'reference' = to_jsonb(OLD) - 'reference'
THEN
    RETURN NEW;
END IF;
"""
NAME_OLD = """
UPDATE billing_transfer SET reference = 'credit:' || id
WHERE id IN (
    SELECT id FROM billing_transfer WHERE reference IS NULL AND kind <> 'usage' LIMIT %s
)
"""
# PostgreSQL has identities of divided tables only from version 17 on.
TAKE_SEQUENCE = """
DO $$
DECLARE
    next_id bigint;
BEGIN
    LOCK TABLE billing_transfer IN ACCESS EXCLUSIVE MODE;
    next_id := nextval(pg_get_serial_sequence('billing_transfer', 'id'));
    ALTER TABLE billing_transfer ALTER id DROP IDENTITY;
    CREATE SEQUENCE billing_transfer_id_seq AS bigint;
    PERFORM setval('billing_transfer_id_seq', next_id, FALSE);
    ALTER TABLE billing_transfer ALTER id SET DEFAULT nextval('billing_transfer_id_seq');
END
$$;
"""
HAS_IDENTITY = """
SELECT 1 FROM pg_attribute
WHERE attrelid = 'billing_transfer'::regclass AND attname = 'id' AND attidentity <> ''
"""
GIVE_SEQUENCE = "ALTER SEQUENCE billing_transfer_id_seq OWNED BY billing_transfer.id"
FREE_SEQUENCE = "ALTER SEQUENCE billing_transfer_id_seq OWNED BY NONE"


def name_grants(cursor):
    """Gives each grant without a reference one, a batch at a time."""
    with transaction.atomic():
        cursor.execute(NAME_GRANTS)
    cursor.execute(FIND_GUARD)
    [[guard, source]] = cursor.fetchall()
    strict = source.replace(LET_NAME, "")
    replace_body(cursor, guard, strict.replace("BEGIN", f"BEGIN{LET_NAME}", 1))
    try:
        cursor.execute(NAME_OLD, [BATCH])
        while cursor.rowcount:
            cursor.execute(NAME_OLD, [BATCH])
    finally:
        replace_body(cursor, guard, strict)


def replace_body(cursor, function, source):
    cursor.execute(
        f"CREATE OR REPLACE FUNCTION {function} RETURNS trigger LANGUAGE plpgsql AS $guard${source}$guard$"
    )


def forward(apps, schema_editor):
    with connection.cursor() as cursor:
        if not is_partitioned(TRANSFERS.table):
            cursor.execute(HAS_IDENTITY)
            if cursor.fetchone():
                cursor.execute(TAKE_SEQUENCE)
            name_grants(cursor)
        divide(TRANSFERS, KEY)
        cursor.execute(GIVE_SEQUENCE)
        with transaction.atomic():
            cursor.execute(DONE_NAMING)


def backward(apps, schema_editor):
    with connection.cursor() as cursor:
        cursor.execute(FREE_SEQUENCE)
        unite(TRANSFERS, "id")
        cursor.execute(GIVE_SEQUENCE)


class Migration(migrations.Migration):
    # Validating the bounds of a large table takes long, and locks it only against other changes.
    atomic = False
    dependencies = [("billing", "0008_folds")]

    operations = [migrations.RunPython(forward, backward, elidable=False)]
