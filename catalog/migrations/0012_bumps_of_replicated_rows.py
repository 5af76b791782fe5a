"""Lets replicated rows of the catalogue move its version too."""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("catalog", "0011_responses_format"),
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
                sql=config.triggers.ReplicatedTriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.id, OLD.id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="7a4e4dc8de551db31c535e4fbbf773003f4df65b",
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
                sql=config.triggers.ReplicatedTriggerSql(
                    constraint="CONSTRAINT",
                    func="IF COALESCE(NEW.organization_id, OLD.organization_id) IS NOT NULL THEN\nUPDATE accounts_organization SET routing_version = pg_current_xact_id()::text::bigint\nWHERE id = COALESCE(NEW.organization_id, OLD.organization_id)\n  AND routing_version IS DISTINCT FROM pg_current_xact_id()::text::bigint;\nRETURN NULL;\nEND IF;\nIF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.id, OLD.id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="438811a53251efd0c1bc3542f5515b6d2dfa9430",
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
                sql=config.triggers.ReplicatedTriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.model_id, OLD.model_id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="99c1d23c285b0c24d229b1f725804f062748e251",
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
                sql=config.triggers.ReplicatedTriggerSql(
                    constraint="CONSTRAINT",
                    func="IF current_setting('causeway.catalog_changed', true) IS DISTINCT FROM pg_current_xact_id()::text::bigint::text THEN\n    PERFORM set_config('causeway.catalog_changed', pg_current_xact_id()::text::bigint::text, true);\n    PERFORM pg_advisory_xact_lock(6024917533);\n    INSERT INTO catalog_catalogversion (id, version) VALUES (1, pg_current_xact_id()::text::bigint)\n    ON CONFLICT (id) DO UPDATE SET version = EXCLUDED.version;\n    DELETE FROM catalog_catalogchange\n    WHERE id <= (SELECT max(id) - 10000 FROM catalog_catalogchange);\n    PERFORM pg_notify('causeway_versions', 'catalog');\nEND IF;\nINSERT INTO catalog_catalogchange (version, subject_id)\nSELECT DISTINCT pg_current_xact_id()::text::bigint, subject\nFROM unnest(ARRAY[NEW.id, OLD.id]) AS subjects (subject) WHERE subject IS NOT NULL\nON CONFLICT (version, subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="3074a32f21ec03827b4c8c0d59fe45df23f87ece",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_version_bump_458a0",
                    table="catalog_provider",
                    timing="DEFERRABLE INITIALLY DEFERRED",
                    when="AFTER",
                ),
            ),
        ),
    ]
