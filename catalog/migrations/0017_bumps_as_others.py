"""Makes the triggers of the catalogue's version as all others."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0016_name_proposals"),
    ]

    operations = [
        pgtrigger.migrations.RemoveTrigger(
            model_name="languagemodel",
            name="version_bump",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="modelalias",
            name="version_bump",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="modelendpoint",
            name="version_bump",
        ),
        pgtrigger.migrations.RemoveTrigger(
            model_name="provider",
            name="version_bump",
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="languagemodel",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.id, OLD.id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="17b0b2574f8552f8ac992dee0cbb1db71f57feca",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_47477",
                    table="catalog_languagemodel",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="modelalias",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF COALESCE(NEW.organization_id, OLD.organization_id) IS NOT NULL THEN\nUPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;\nEND IF;\nIF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.id, OLD.id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="c471c8da3ae4198a48193a696f480f34ac2551f1",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_5a9b8",
                    table="catalog_modelalias",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="modelendpoint",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.model_id, OLD.model_id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="995470517468010e232bf5bec3c34a1a6f993f44",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_77f82",
                    table="catalog_modelendpoint",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="provider",
            trigger=pgtrigger.compiler.Trigger(
                name="version_bump",
                sql=config.triggers.TriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.id, OLD.id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="44e2067802be04aa875030d1dd6889b323ec4f97",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_458a0",
                    table="catalog_provider",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
    ]
