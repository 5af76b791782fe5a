"""Lets running processes notice a changed catalogue, and keeps prices as they were."""

from django.db import migrations

# Deferred to the commit, so that the version row is locked last and for an instant: transactions
# that also lock other rows cannot meet in a deadlock over it. Once for each transaction.
VERSION = """
CREATE FUNCTION causeway_catalog_changed() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE CONSTRAINT TRIGGER catalog_changed AFTER INSERT OR UPDATE OR DELETE ON catalog_provider
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_catalog_changed();
CREATE CONSTRAINT TRIGGER catalog_changed AFTER INSERT OR UPDATE OR DELETE ON catalog_languagemodel
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_catalog_changed();
CREATE CONSTRAINT TRIGGER catalog_changed AFTER INSERT OR UPDATE OR DELETE ON catalog_modelendpoint
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION causeway_catalog_changed();
"""

NO_VERSION = """
DROP TRIGGER catalog_changed ON catalog_provider;
DROP TRIGGER catalog_changed ON catalog_languagemodel;
DROP TRIGGER catalog_changed ON catalog_modelendpoint;
DROP FUNCTION causeway_catalog_changed();
"""

APPEND_ONLY = """
CREATE FUNCTION causeway_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON catalog_priceversion
    FOR EACH ROW EXECUTE FUNCTION causeway_append_only();
"""

NO_APPEND_ONLY = """
DROP TRIGGER append_only ON catalog_priceversion;
DROP FUNCTION causeway_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("catalog", "0001_initial")]

    operations = [
        migrations.RunSQL(VERSION, NO_VERSION),
        migrations.RunSQL(APPEND_ONLY, NO_APPEND_ONLY),
    ]
