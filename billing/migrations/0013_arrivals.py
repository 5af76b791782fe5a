"""A table of the opening balances that organizations bring along from other cells."""

import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("billing", "0012_drop_repeated_indexes"),
    ]

    operations = [
        migrations.CreateModel(
            name="Arrival",
            fields=[
                ("organization_id", models.UUIDField(primary_key=True, serialize=False)),
                ("number", models.PositiveIntegerField(unique=True)),
                ("cell", models.CharField(help_text="The cell that it left.", max_length=32)),
                ("sums_digest", models.CharField(help_text="Of the openings.", max_length=64)),
                ("seal", models.CharField(max_length=64)),
                (
                    "arrived_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("number__gt", 1073741824)), name="arrival_is_no_fold"
                    )
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="arrival",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="RAISE EXCEPTION 'billing_arrival is append-only' USING ERRCODE = 'restrict_violation';",
                    hash="d63206b85901a141668b0484c1e76ba937477a31",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_3675d",
                    table="billing_arrival",
                    when="BEFORE",
                ),
            ),
        ),
    ]
