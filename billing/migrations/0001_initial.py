"""The ledger, grants, top-ups and deposits."""

import datetime
import uuid

import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.datetime
import pgtrigger.compiler
import pgtrigger.migrations
from django.db import migrations, models

import billing.topups.models.units
import config.triggers

# Free space in each page, so that an update stores the new version of a row beside the old one.
FILL_FACTORS = """
ALTER TABLE billing_transfer SET (fillfactor = 85);
ALTER TABLE billing_account SET (fillfactor = 50);
ALTER TABLE billing_meter SET (fillfactor = 50);
"""


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("accounts", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Deposit",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("received", "received"),
                            ("credited", "credited"),
                            ("unmatched", "unmatched"),
                            ("under", "under"),
                            ("over", "over"),
                            ("late", "late"),
                            ("dismissed", "dismissed"),
                        ],
                        default="received",
                        editable=False,
                        max_length=16,
                    ),
                ),
                (
                    "finding",
                    models.CharField(
                        choices=[
                            ("received", "received"),
                            ("credited", "credited"),
                            ("unmatched", "unmatched"),
                            ("under", "under"),
                            ("over", "over"),
                            ("late", "late"),
                            ("dismissed", "dismissed"),
                        ],
                        default="",
                        editable=False,
                        help_text="The result of matching, before an operator resolved the deposit.",
                        max_length=16,
                    ),
                ),
                ("chain_id", models.BigIntegerField(editable=False, verbose_name="chain ID")),
                (
                    "tx_hash",
                    models.CharField(editable=False, max_length=66, verbose_name="transaction"),
                ),
                (
                    "ordinal",
                    models.PositiveIntegerField(
                        editable=False,
                        help_text="The position of the log in the transaction's receipt.",
                    ),
                ),
                ("block_number", models.BigIntegerField(editable=False, verbose_name="block")),
                ("block_hash", models.CharField(editable=False, max_length=66)),
                ("mined_at", models.DateTimeField(editable=False)),
                ("token", models.CharField(editable=False, max_length=42)),
                ("token_symbol", models.CharField(editable=False, max_length=16)),
                ("token_decimals", models.PositiveSmallIntegerField(editable=False)),
                ("sender", models.CharField(editable=False, max_length=42)),
                ("recipient", models.CharField(editable=False, max_length=42)),
                (
                    "units",
                    billing.topups.models.units.UnitsField(
                        editable=False, help_text="In the token's base units."
                    ),
                ),
                (
                    "amount_nano",
                    billing.topups.models.units.UnitsField(
                        editable=False, help_text="In nano-USD."
                    ),
                ),
                ("resolved_at", models.DateTimeField(editable=False, null=True)),
                ("resolved_by", models.CharField(default="", editable=False, max_length=255)),
                ("note", models.TextField(default="", editable=False)),
            ],
            options={
                "ordering": ("-created_at", "id"),
            },
        ),
        migrations.CreateModel(
            name="GrantRequest",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("amount_nano", models.BigIntegerField(editable=False, help_text="In nano-USD.")),
                ("note", models.TextField(default="", editable=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("requested", "requested"),
                            ("approved", "approved"),
                            ("declined", "declined"),
                        ],
                        default="requested",
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("requested_by", models.CharField(editable=False, max_length=255)),
                ("decided_at", models.DateTimeField(editable=False, null=True)),
                ("decided_by", models.CharField(default="", editable=False, max_length=255)),
            ],
            options={
                "ordering": ("-created_at",),
            },
        ),
        migrations.CreateModel(
            name="Meter",
            fields=[
                ("subject_id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                (
                    "day",
                    models.DateField(
                        db_default=datetime.date(1, 1, 1), default=datetime.date(1, 1, 1)
                    ),
                ),
                ("cost_daily", models.BigIntegerField(db_default=0, default=0)),
                ("cost_weekly", models.BigIntegerField(db_default=0, default=0)),
                ("cost_monthly", models.BigIntegerField(db_default=0, default=0)),
                ("cost", models.BigIntegerField(db_default=0, default=0)),
                ("byok_daily", models.BigIntegerField(db_default=0, default=0)),
                ("byok_weekly", models.BigIntegerField(db_default=0, default=0)),
                ("byok_monthly", models.BigIntegerField(db_default=0, default=0)),
                ("byok", models.BigIntegerField(db_default=0, default=0)),
                ("held_cost", models.BigIntegerField(db_default=0, default=0)),
                ("held_byok", models.BigIntegerField(db_default=0, default=0)),
                ("requests", models.BigIntegerField(db_default=0, default=0)),
                (
                    "minute",
                    models.DateTimeField(help_text="The last minute with a request.", null=True),
                ),
                (
                    "requests_before",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="Requests before that minute."
                    ),
                ),
                ("last_used_at", models.DateTimeField(null=True)),
            ],
        ),
        migrations.CreateModel(
            name="TopUp",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("idempotency_key", models.CharField(editable=False, max_length=255, null=True)),
                ("request_fingerprint", models.CharField(editable=False, max_length=64)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("open", "open"),
                            ("seen", "seen"),
                            ("confirmed", "confirmed"),
                            ("expired", "expired"),
                            ("review", "review"),
                        ],
                        default="open",
                        editable=False,
                        max_length=16,
                    ),
                ),
                (
                    "amount_nano",
                    models.BigIntegerField(
                        editable=False, help_text="The amount requested, in nano-USD."
                    ),
                ),
                ("chain_id", models.BigIntegerField(editable=False, verbose_name="chain ID")),
                ("token", models.CharField(editable=False, max_length=42)),
                ("token_symbol", models.CharField(editable=False, max_length=16)),
                ("token_decimals", models.PositiveSmallIntegerField(editable=False)),
                ("sender", models.CharField(editable=False, max_length=42)),
                ("recipient", models.CharField(editable=False, max_length=42)),
                (
                    "units",
                    billing.topups.models.units.UnitsField(
                        editable=False, help_text="The amount to pay, in the token's base units."
                    ),
                ),
                ("expires_at", models.DateTimeField(editable=False)),
                (
                    "payable_until",
                    models.DateTimeField(
                        editable=False, help_text="Payments mined until then are credited."
                    ),
                ),
                ("is_reserved", models.BooleanField(default=True, editable=False)),
                (
                    "tx_hash",
                    models.CharField(
                        default="", editable=False, max_length=66, verbose_name="transaction"
                    ),
                ),
                (
                    "block_number",
                    models.BigIntegerField(editable=False, null=True, verbose_name="block"),
                ),
                ("confirmed_at", models.DateTimeField(editable=False, null=True)),
                ("requested_by", models.CharField(default="", editable=False, max_length=255)),
            ],
            options={
                "verbose_name": "top-up",
                "ordering": ("-created_at", "id"),
            },
        ),
        migrations.CreateModel(
            name="Transfer",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("usage", "usage"),
                            ("excess", "usage beyond its hold"),
                            ("write_off", "usage beyond all credits"),
                            ("refund", "refund"),
                            ("grant", "grant"),
                            ("deposit", "deposit"),
                        ],
                        max_length=16,
                    ),
                ),
                (
                    "amount_nano",
                    models.BigIntegerField(help_text="The largest amount to move, in nano-USD."),
                ),
                (
                    "posted_nano",
                    models.BigIntegerField(
                        help_text="The amount that moved, in nano-USD.", null=True
                    ),
                ),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("posted", "posted"),
                            ("voided", "voided"),
                        ],
                        max_length=16,
                    ),
                ),
                ("reference", models.CharField(db_collation="C", max_length=128, null=True)),
                ("actor", models.CharField(db_default="", default="", max_length=255)),
                ("note", models.TextField(db_default="", default="")),
                (
                    "created_at",
                    models.DateTimeField(db_default=django.db.models.functions.datetime.Now()),
                ),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("-id",),
            },
        ),
        migrations.CreateModel(
            name="ApiKeyMeter",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("accounts.apikey",),
        ),
        migrations.CreateModel(
            name="MemberMeter",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("accounts.member",),
        ),
        migrations.CreateModel(
            name="OrganizationAccounts",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("accounts.organization",),
        ),
        migrations.CreateModel(
            name="WorkspaceMeter",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
                "indexes": [],
                "constraints": [],
            },
            bases=("accounts.workspace",),
        ),
        migrations.CreateModel(
            name="Account",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("credits", "credits"),
                            ("usage", "usage"),
                            ("grants", "grants"),
                            ("deposits", "deposits"),
                            ("write_off", "write-off"),
                        ],
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("posted_debits", models.BigIntegerField(db_default=0, default=0, editable=False)),
                ("posted_credits", models.BigIntegerField(db_default=0, default=0, editable=False)),
                ("pending_debits", models.BigIntegerField(db_default=0, default=0, editable=False)),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="accounts",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "ordering": ("organization", "id"),
            },
        ),
        migrations.CreateModel(
            name="ChainState",
            fields=[
                (
                    "chain_id",
                    models.BigIntegerField(
                        primary_key=True, serialize=False, verbose_name="chain ID"
                    ),
                ),
                (
                    "number",
                    models.BigIntegerField(
                        editable=False,
                        help_text="The last block whose payments are stored.",
                        null=True,
                        verbose_name="block",
                    ),
                ),
                ("block_hash", models.CharField(editable=False, max_length=66, null=True)),
                (
                    "latest_number",
                    models.BigIntegerField(editable=False, null=True, verbose_name="latest block"),
                ),
                ("scanned_at", models.DateTimeField(editable=False, null=True)),
                ("halted_at", models.DateTimeField(editable=False, null=True)),
                ("halt_reason", models.CharField(default="", editable=False, max_length=255)),
                ("resumed_at", models.DateTimeField(editable=False, null=True)),
                ("resumed_by", models.CharField(default="", editable=False, max_length=255)),
                (
                    "failures",
                    models.PositiveIntegerField(
                        default=0,
                        editable=False,
                        help_text="Consecutive failures to read the node.",
                    ),
                ),
                ("failure", models.CharField(default="", editable=False, max_length=255)),
                ("retry_at", models.DateTimeField(editable=False, null=True)),
                (
                    "span",
                    models.PositiveIntegerField(
                        editable=False,
                        help_text="The number of blocks that the node returns at once.",
                        null=True,
                    ),
                ),
            ],
            options={
                "verbose_name": "chain",
                "ordering": ("chain_id",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("block_hash", None), ("number", None)),
                            models.Q(("block_hash__isnull", False), ("number__gte", 0)),
                            _connector="OR",
                        ),
                        name="chain_cursor_is_whole",
                    )
                ],
            },
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="chainstate",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'billing.chainstate',\n    changed ->> 'chain_id', NULL, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="445ff36bffc0c5d0576901879de40d8c9a7a4288",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_06dbb",
                    table="billing_chainstate",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddField(
            model_name="deposit",
            name="organization",
            field=models.ForeignKey(
                editable=False,
                help_text="The organization that was credited.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="deposits",
                to="accounts.organization",
            ),
        ),
        migrations.AddField(
            model_name="grantrequest",
            name="organization",
            field=models.ForeignKey(
                editable=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="accounts.organization",
            ),
        ),
        migrations.AddField(
            model_name="meter",
            name="organization",
            field=models.ForeignKey(
                editable=False,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="accounts.organization",
            ),
        ),
        migrations.AddField(
            model_name="topup",
            name="organization",
            field=models.ForeignKey(
                editable=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="top_ups",
                to="accounts.organization",
            ),
        ),
        migrations.AddField(
            model_name="deposit",
            name="top_up",
            field=models.ForeignKey(
                editable=False,
                help_text="The top-up that the deposit pays, or the nearest one.",
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="deposits",
                to="billing.topup",
                verbose_name="top-up",
            ),
        ),
        migrations.AddField(
            model_name="transfer",
            name="credit",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.account",
            ),
        ),
        migrations.AddField(
            model_name="transfer",
            name="debit",
            field=models.ForeignKey(
                db_index=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="+",
                to="billing.account",
            ),
        ),
        migrations.AddField(
            model_name="transfer",
            name="organization",
            field=models.ForeignKey(
                db_index=False,
                editable=False,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="transfers",
                to="accounts.organization",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="apikeymeter",
            trigger=pgtrigger.compiler.Trigger(
                name="open_meter",
                sql=config.triggers.TriggerSql(
                    func="INSERT INTO billing_meter (subject_id, organization_id)\nVALUES (NEW.id, NEW.organization_id);\nRETURN NULL;",
                    hash="0af8433c7f54956aa29a736d0f9b396057a5d3df",
                    operation="INSERT",
                    pgid="pgtrigger_open_meter_82dc8",
                    table="accounts_apikey",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="membermeter",
            trigger=pgtrigger.compiler.Trigger(
                name="open_meter",
                sql=config.triggers.TriggerSql(
                    func="INSERT INTO billing_meter (subject_id, organization_id)\nVALUES (NEW.id, NEW.organization_id);\nRETURN NULL;",
                    hash="8b4fad4f143f984a538244f209c9df4f39f675ae",
                    operation="INSERT",
                    pgid="pgtrigger_open_meter_3c3c7",
                    table="accounts_member",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="organizationaccounts",
            trigger=pgtrigger.compiler.Trigger(
                name="open_accounts",
                sql=config.triggers.TriggerSql(
                    func="INSERT INTO billing_account (organization_id, kind)\nSELECT NEW.id, unnest(ARRAY['credits', 'usage', 'grants', 'deposits', 'write_off']);\nRETURN NULL;",
                    hash="02b95c210ec0e0b2328482ca9575851a26f40e9b",
                    operation="INSERT",
                    pgid="pgtrigger_open_accounts_b360d",
                    table="accounts_organization",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="workspacemeter",
            trigger=pgtrigger.compiler.Trigger(
                name="open_meter",
                sql=config.triggers.TriggerSql(
                    func="INSERT INTO billing_meter (subject_id, organization_id)\nVALUES (NEW.id, NEW.organization_id);\nRETURN NULL;",
                    hash="b98759bc8ba22db1e9fe32fa8cd044e4cefe2dcc",
                    operation="INSERT",
                    pgid="pgtrigger_open_meter_5f9d6",
                    table="accounts_workspace",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="account",
            constraint=models.UniqueConstraint(
                fields=("organization", "kind"), name="account_one_of_a_kind"
            ),
        ),
        migrations.AddConstraint(
            model_name="account",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("pending_debits__gte", 0),
                    ("posted_credits__gte", 0),
                    ("posted_debits__gte", 0),
                ),
                name="account_sums_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="account",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("kind", "credits"), _negated=True),
                    (
                        "posted_credits__gte",
                        django.db.models.expressions.CombinedExpression(
                            models.F("posted_debits"), "+", models.F("pending_debits")
                        ),
                    ),
                    _connector="OR",
                ),
                name="account_not_overdrawn",
            ),
        ),
        migrations.AddConstraint(
            model_name="grantrequest",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("amount_nano__gt", 0),
                    models.Q(
                        models.Q(("decided_at", None), ("status", "requested")),
                        models.Q(("decided_at__isnull", False), ("status", "declined")),
                        models.Q(
                            ("decided_at__isnull", False),
                            ("status", "approved"),
                            models.Q(("decided_by", models.F("requested_by")), _negated=True),
                        ),
                        _connector="OR",
                    ),
                ),
                name="grant_request_is_consistent",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="grantrequest",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'billing.grantrequest',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="cdced2e9c341e7d2d808e7d0b1f486e2b7d5e26b",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_91946",
                    table="billing_grantrequest",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddConstraint(
            model_name="meter",
            constraint=models.CheckConstraint(
                condition=models.Q(("held_byok__gte", 0), ("held_cost__gte", 0)),
                name="meter_holds_not_negative",
            ),
        ),
        migrations.AddIndex(
            model_name="topup",
            index=models.Index(fields=["organization", "-created_at"], name="top_up_list"),
        ),
        migrations.AddIndex(
            model_name="topup",
            index=models.Index(fields=["chain_id", "sender", "units"], name="top_up_match"),
        ),
        migrations.AddIndex(
            model_name="topup",
            index=models.Index(
                condition=models.Q(("status__in", ("open", "seen"))),
                fields=["expires_at"],
                name="top_up_due",
            ),
        ),
        migrations.AddIndex(
            model_name="topup",
            index=models.Index(
                condition=models.Q(("is_reserved", True)),
                fields=["chain_id", "payable_until"],
                name="top_up_reserved",
            ),
        ),
        migrations.AddConstraint(
            model_name="topup",
            constraint=models.UniqueConstraint(
                fields=("organization", "idempotency_key"), name="top_up_idempotency"
            ),
        ),
        migrations.AddConstraint(
            model_name="topup",
            constraint=models.UniqueConstraint(
                condition=models.Q(("is_reserved", True)),
                fields=("chain_id", "token", "sender", "units"),
                name="top_up_told_by_its_amount",
            ),
        ),
        migrations.AddConstraint(
            model_name="topup",
            constraint=models.CheckConstraint(
                condition=models.Q(("amount_nano__gt", 0), ("units__gt", 0)),
                name="top_up_amount_positive",
            ),
        ),
        migrations.AddConstraint(
            model_name="topup",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("confirmed_at__isnull", False), ("status", "confirmed")),
                    models.Q(
                        models.Q(("status", "confirmed"), _negated=True), ("confirmed_at", None)
                    ),
                    _connector="OR",
                ),
                name="top_up_confirmation_stamp",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="topup",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at', 'request_fingerprint']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at', 'request_fingerprint']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'billing.topup',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="56b48508670faea21951e4ad1d326ccff56cb095",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_13aa1",
                    table="billing_topup",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="deposit",
            index=models.Index(
                condition=models.Q(("status", "received")),
                fields=["chain_id", "block_number"],
                name="deposit_received",
            ),
        ),
        migrations.AddIndex(
            model_name="deposit",
            index=models.Index(
                condition=models.Q(("status__in", ("unmatched", "under", "over", "late"))),
                fields=["created_at"],
                name="deposit_in_review",
            ),
        ),
        migrations.AddConstraint(
            model_name="deposit",
            constraint=models.UniqueConstraint(
                fields=("chain_id", "tx_hash", "ordinal"), name="deposit_once"
            ),
        ),
        migrations.AddConstraint(
            model_name="deposit",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("organization__isnull", False), ("status", "credited")),
                    models.Q(
                        models.Q(("status", "credited"), _negated=True), ("organization", None)
                    ),
                    _connector="OR",
                ),
                name="deposit_credited_to_somebody",
            ),
        ),
        migrations.AddConstraint(
            model_name="deposit",
            constraint=models.CheckConstraint(
                condition=models.Q(("units__gt", 0)), name="deposit_units_positive"
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="deposit",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="IF TG_OP = 'UPDATE' AND (\n    OLD.status = 'received' AND NEW.status IN ('credited', 'unmatched', 'under', 'over', 'late')\n    AND NEW.finding = NEW.status\n    AND (NEW.resolved_at, NEW.resolved_by, NEW.note)\n        IS NOT DISTINCT FROM (OLD.resolved_at, OLD.resolved_by, OLD.note)\n    OR OLD.status IN ('unmatched', 'under', 'over', 'late')\n    AND NEW.status IN ('credited', 'dismissed') AND NEW.resolved_at IS NOT NULL\n    AND (NEW.finding, NEW.top_up_id) IS NOT DISTINCT FROM (OLD.finding, OLD.top_up_id)\n)\n   AND (NEW.id, NEW.created_at, NEW.chain_id, NEW.tx_hash, NEW.ordinal, NEW.block_number, NEW.block_hash, NEW.mined_at, NEW.token, NEW.token_symbol, NEW.token_decimals, NEW.sender, NEW.recipient, NEW.units, NEW.amount_nano)\n       IS NOT DISTINCT FROM\n       (OLD.id, OLD.created_at, OLD.chain_id, OLD.tx_hash, OLD.ordinal, OLD.block_number, OLD.block_hash, OLD.mined_at, OLD.token, OLD.token_symbol, OLD.token_decimals, OLD.sender, OLD.recipient, OLD.units, OLD.amount_nano)\nTHEN\n    RETURN NEW;\nEND IF;\nRAISE EXCEPTION 'a deposit is never changed, but matched once and resolved once' USING ERRCODE = 'restrict_violation';",
                    hash="2b77fdab7e8b60f146ddcaf9a0bae28c46d0b42d",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_bba17",
                    table="billing_deposit",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="deposit",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'billing.deposit',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="e97c9654de9241d05f1ce76b94a744f2fdd9251f",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_5072f",
                    table="billing_deposit",
                    when="AFTER",
                ),
            ),
        ),
        migrations.AddIndex(
            model_name="transfer",
            index=models.Index(fields=["organization", "-id"], name="transfer_list"),
        ),
        migrations.AddIndex(
            model_name="transfer",
            index=models.Index(
                condition=models.Q(("kind", "usage"), _negated=True),
                fields=["kind", "-id"],
                name="transfer_by_kind",
            ),
        ),
        migrations.AddConstraint(
            model_name="transfer",
            constraint=models.UniqueConstraint(
                condition=models.Q(("reference__isnull", False)),
                fields=("reference", "kind"),
                name="transfer_once",
            ),
        ),
        migrations.AddConstraint(
            model_name="transfer",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("amount_nano__gt", 0),
                    models.Q(
                        models.Q(("ended_at", None), ("posted_nano", None), ("status", "pending")),
                        models.Q(
                            ("ended_at__isnull", False), ("posted_nano", None), ("status", "voided")
                        ),
                        models.Q(
                            ("ended_at__isnull", False),
                            ("posted_nano__gt", 0),
                            ("posted_nano__lte", models.F("amount_nano")),
                            ("status", "posted"),
                        ),
                        _connector="OR",
                    ),
                ),
                name="transfer_is_consistent",
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="transfer",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="IF TG_OP = 'UPDATE' AND (OLD.status = 'pending' AND NEW.status IN ('posted', 'voided'))\n   AND (NEW.id, NEW.organization_id, NEW.kind, NEW.debit_id, NEW.credit_id, NEW.amount_nano, NEW.reference, NEW.actor, NEW.note, NEW.created_at)\n       IS NOT DISTINCT FROM\n       (OLD.id, OLD.organization_id, OLD.kind, OLD.debit_id, OLD.credit_id, OLD.amount_nano, OLD.reference, OLD.actor, OLD.note, OLD.created_at)\nTHEN\n    RETURN NEW;\nEND IF;\nRAISE EXCEPTION 'a transfer is never changed, but ended once' USING ERRCODE = 'restrict_violation';",
                    hash="d10d37b64480d38980101629c6312740e3af2369",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_70794",
                    table="billing_transfer",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="transfer",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN ((NEW.kind IN ('grant', 'refund')) AND current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'billing.transfer',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="b8132535572a8c5576e36f6e7df0d8481230bfb2",
                    operation="INSERT",
                    pgid="pgtrigger_audit_c8046",
                    table="billing_transfer",
                    when="AFTER",
                ),
            ),
        ),
        migrations.RunSQL(FILL_FACTORS, migrations.RunSQL.noop),
    ]
