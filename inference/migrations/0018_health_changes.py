"""Rows of the health of endpoints tell which transaction wrote them last.

Workers of the previous release write and read the rows as before; the trigger stamps theirs too.
"""

import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("inference", "0015_partitions_of_generations"),
    ]

    operations = [
        migrations.AddField(
            model_name="endpointhealth",
            name="changed",
            field=models.BigIntegerField(
                db_default=0, default=0, help_text="The transaction that wrote the row last."
            ),
        ),
        migrations.AddIndex(
            model_name="endpointhealth",
            index=models.Index(fields=["changed"], name="health_changed"),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="endpointhealth",
            trigger=pgtrigger.compiler.Trigger(
                name="stamp",
                sql=config.triggers.TriggerSql(
                    func="NEW.changed := pg_current_xact_id()::text::bigint; RETURN NEW;",
                    hash="76bcddfbc119514df793e4d2c8a6d4e105b334b0",
                    operation="INSERT OR UPDATE",
                    pgid="pgtrigger_stamp_5ed05",
                    table="inference_endpointhealth",
                    when="BEFORE",
                ),
            ),
        ),
    ]
