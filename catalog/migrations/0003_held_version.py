"""Lets a batch of requests hold the catalogue as it is until they have begun.

An advisory lock, because those who share a row would pass by whoever waits to change it, again and
again; its queue is fair. The number is the lock's name, and nobody else's.
"""

from django.db import migrations

# Not the statement's own view of the version, which may be older than the lock.
HOLD = """
CREATE FUNCTION causeway_hold_catalog() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(6024917533);
    RETURN COALESCE((SELECT version FROM catalog_catalogversion), 0);
END
$$;
CREATE OR REPLACE FUNCTION causeway_catalog_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    here text := pg_current_xact_id()::text;
BEGIN
    IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM here THEN
        PERFORM set_config('causeway.catalog_changed', here, true);
        PERFORM pg_advisory_xact_lock(6024917533);
        INSERT INTO catalog_catalogversion (id, version) VALUES (1, here::bigint)
        ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;
    END IF;
    RETURN NULL;
END
$$;
"""

LET_GO = """
CREATE OR REPLACE FUNCTION causeway_catalog_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    here text := pg_current_xact_id()::text;
BEGIN
    IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM here THEN
        PERFORM set_config('causeway.catalog_changed', here, true);
        INSERT INTO catalog_catalogversion (id, version) VALUES (1, here::bigint)
        ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;
    END IF;
    RETURN NULL;
END
$$;
DROP FUNCTION causeway_hold_catalog();
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0002_triggers")]

    operations = [migrations.RunSQL(HOLD, LET_GO)]
