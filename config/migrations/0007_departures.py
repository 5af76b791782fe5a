"""A table of the partitions that have left, with their archived files."""

import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [("config", "0006_partitions_of_audit_entries")]

    operations = [
        migrations.CreateModel(
            name="Departure",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("kind", models.CharField(max_length=32)),
                (
                    "begin",
                    models.DateTimeField(
                        help_text="Empty for everything before the end.", null=True
                    ),
                ),
                ("end", models.DateTimeField()),
                (
                    "files",
                    models.JSONField(
                        help_text="The files of the archive, each with its table, rows and digest."
                    ),
                ),
                ("seal", models.CharField(max_length=64)),
                (
                    "left_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={"ordering": ("id",)},
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="departure",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func=(
                        "RAISE EXCEPTION 'what has left is never changed' "
                        "USING ERRCODE = 'restrict_violation';"
                    ),
                    hash="9e9f94ba0eab878a1e428e1fbeab92398f2b81c1",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_5120c",
                    table="config_departure",
                    when="BEFORE",
                ),
            ),
        ),
    ]
