"""Stores the sums of archived transfers and generations as opening balances."""

import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0007_changes_by_address"),
    ]

    operations = [
        migrations.CreateModel(
            name="MeterOpening",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "fold_id",
                        "subject_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("fold_id", models.PositiveIntegerField()),
                ("subject_id", models.UUIDField()),
                ("cost", models.BigIntegerField()),
                ("byok", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Opening",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "fold_id",
                        "account_id",
                        blank=True,
                        editable=False,
                        primary_key=True,
                        serialize=False,
                    ),
                ),
                ("fold_id", models.PositiveIntegerField()),
                ("account_id", models.BigIntegerField()),
                ("posted_debits", models.BigIntegerField()),
                ("posted_credits", models.BigIntegerField()),
            ],
        ),
        migrations.CreateModel(
            name="Fold",
            fields=[
                ("number", models.PositiveIntegerField(primary_key=True, serialize=False)),
                (
                    "begin",
                    models.CharField(db_collation="C", help_text="The lowest id.", max_length=128),
                ),
                (
                    "end",
                    models.CharField(
                        db_collation="C", help_text="Above the highest id.", max_length=128
                    ),
                ),
                (
                    "files",
                    models.JSONField(
                        help_text="The files of the archive, each with its table, rows and digest."
                    ),
                ),
                ("sums_digest", models.CharField(help_text="Of the openings.", max_length=64)),
                ("previous", models.CharField(blank=True, max_length=64)),
                ("seal", models.CharField(max_length=64)),
                (
                    "folded_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "ordering": ("number",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("number__gt", 0), ("begin__lt", models.F("end"))),
                        name="fold_is_consistent",
                    )
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="fold",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="RAISE EXCEPTION 'billing_fold is append-only' USING ERRCODE = 'restrict_violation';",
                    hash="3a35dcc7de4db65272d09bf27e18a5522486a29e",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_7c5be",
                    table="billing_fold",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="meteropening",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="RAISE EXCEPTION 'billing_meteropening is append-only' USING ERRCODE = 'restrict_violation';",
                    hash="0644e6a59995b9e1ba45441e49e78a8c864c949c",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_0cc6b",
                    table="billing_meteropening",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="opening",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="RAISE EXCEPTION 'billing_opening is append-only' USING ERRCODE = 'restrict_violation';",
                    hash="86576ca1c95c235cc35608b21623c8ded61c67a1",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_0c003",
                    table="billing_opening",
                    when="BEFORE",
                ),
            ),
        ),
    ]
