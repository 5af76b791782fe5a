"""Stops checking the accounts of each transfer, and keeps accounts that have transfers."""

import django.db.models.deletion
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import config.triggers


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0005_versions_of_keys"),
        ("billing", "0004_rate_meters"),
    ]

    operations = [
        migrations.AlterField(
            model_name="transfer",
            name="credit",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.account",
            ),
        ),
        migrations.AlterField(
            model_name="transfer",
            name="debit",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.account",
            ),
        ),
        migrations.AlterField(
            model_name="transfer",
            name="organization",
            field=models.ForeignKey(
                db_constraint=False,
                db_index=False,
                editable=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="transfers",
                to="accounts.organization",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="account",
            trigger=pgtrigger.compiler.Trigger(
                name="keep_used",
                sql=config.triggers.TriggerSql(
                    func="IF NOT EXISTS (SELECT 1 FROM billing_transfer WHERE organization_id = OLD.organization_id AND OLD.id IN (debit_id, credit_id)) THEN\n    \n    IF NOT EXISTS (SELECT 1 FROM billing_transfer WHERE organization_id = OLD.organization_id AND OLD.id IN (debit_id, credit_id)) THEN RETURN OLD; END IF;\nEND IF;\nRAISE EXCEPTION 'the row % of billing_account is in use', OLD.id\n    USING ERRCODE = 'foreign_key_violation';",
                    hash="24ec8150c50df5c6121b08b346080a8e4ccca0c0",
                    operation="DELETE",
                    pgid="pgtrigger_keep_used_468ab",
                    table="billing_account",
                    when="BEFORE",
                ),
            ),
        ),
    ]
