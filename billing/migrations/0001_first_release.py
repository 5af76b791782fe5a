"""The ledger, its folds, grants, top-ups and deposits."""

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
from billing.models.ledger import OF_GENERATIONS, read_reference_bound, reference_bound
from config.database.replaced import REPLACED
from config.partitions.creation import divide
from config.partitions.declarations import Partitioning

TRANSFERS = Partitioning(
    "billing_transfer",
    "reference",
    write_bound=reference_bound,
    read_bound=read_reference_bound,
    storage={"fillfactor": 60},
    values=OF_GENERATIONS,
)


# Functions change locked accounts and meters by their addresses, and keep their versions together.
#
# While any transaction stays open, PostgreSQL keeps every version of a row that is newer than it.
# The accounts and meters of a busy organization get hundreds of versions a second, and both the
# search of a row and the check of a unique index for a new entry read all of them.
#
# The functions update rows that the statement which calls them has locked, and search for none.
# They are volatile, so each command in them sees the rows as they are when it begins: a version
# that was committed before the lock was granted is seen, and its address (``ctid``) stays the same
# while the lock is held. In the statement itself the same join would lose such a row, because the
# statement sees rows as they were when it began.
#
# A worker of an earlier release may call a function while a later one is installed. A function
# whose meaning changes therefore gets a new name with the next number.

# Parameters: the addresses of locked credits accounts, and the amounts to hold.
HOLD_ACCOUNTS = """
CREATE FUNCTION causeway_hold_accounts_1(tids tid[], amounts bigint[])
RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    changed bigint;
BEGIN
    UPDATE billing_account AS a
    SET pending_debits = a.pending_debits + w.amount
    FROM unnest(tids, amounts) AS w (tid, amount)
    WHERE a.ctid = w.tid;
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM causeway_require_all_1(changed, tids);
END
$$;
"""

# Parameters: the addresses of locked meters, and what to add to each.
# Returns: the meters as they are now.
HOLD_METERS = """
CREATE FUNCTION causeway_hold_meters_1(
    tids tid[], costs bigint[], byoks bigint[], token_counts bigint[], request_counts bigint[]
) RETURNS SETOF billing_meter LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    this_minute CONSTANT timestamptz := date_trunc('minute', now());
    changed bigint;
BEGIN
    RETURN QUERY UPDATE billing_meter AS m
    SET
        held_cost = m.held_cost + w.cost,
        held_byok = m.held_byok + w.byok,
        held_tokens = m.held_tokens + w.tokens,
        requests = m.requests + w.requests,
        running = m.running + w.requests,
        last_used_at = now(),
        requests_before = CASE
            WHEN m.minute >= this_minute THEN m.requests_before ELSE m.requests
        END,
        requests_before_day = CASE
            WHEN m.minute >= date_trunc('day', this_minute, 'UTC')
                THEN coalesce(m.requests_before_day, m.requests)
            ELSE m.requests
        END,
        tokens_before = CASE
            WHEN m.minute >= this_minute THEN m.tokens_before ELSE m.tokens
        END,
        minute = greatest(m.minute, this_minute)
    FROM unnest(tids, costs, byoks, token_counts, request_counts)
        AS w (tid, cost, byok, tokens, requests)
    WHERE m.ctid = w.tid
    RETURNING m.*;
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM causeway_require_all_1(changed, tids);
END
$$;
"""

# Parameters: the addresses of locked accounts; the holds that end, and what is debited and credited.
SETTLE_ACCOUNTS = """
CREATE FUNCTION causeway_settle_accounts_1(
    tids tid[], holds bigint[], debits bigint[], credits bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    changed bigint;
BEGIN
    UPDATE billing_account AS a
    SET
        pending_debits = a.pending_debits - w.held,
        posted_debits = a.posted_debits + w.debits,
        posted_credits = a.posted_credits + w.credits
    FROM unnest(tids, holds, debits, credits) AS w (tid, held, debits, credits)
    WHERE a.ctid = w.tid;
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM causeway_require_all_1(changed, tids);
END
$$;
"""

# Parameters: the addresses of locked meters; the costs and tokens to count, and the holds that end.
# A transaction that began before midnight may come after one that began later: the day of a meter
# never goes back.
SETTLE_METERS = """
CREATE FUNCTION causeway_settle_meters_1(
    tids tid[], costs bigint[], byoks bigint[], holds bigint[], byok_holds bigint[],
    token_counts bigint[], held_token_counts bigint[], request_counts bigint[]
) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    today CONSTANT date := (now() AT TIME ZONE 'UTC')::date;
    this_minute CONSTANT timestamptz := date_trunc('minute', now());
    changed bigint;
BEGIN
    UPDATE billing_meter AS m
    SET
        day = greatest(m.day, today),
        cost_daily = CASE WHEN m.day >= today THEN m.cost_daily ELSE 0 END + w.cost,
        cost_weekly = CASE
            WHEN m.day >= date_trunc('week', today)::date THEN m.cost_weekly ELSE 0
        END + w.cost,
        cost_monthly = CASE
            WHEN m.day >= date_trunc('month', today)::date THEN m.cost_monthly ELSE 0
        END + w.cost,
        byok_daily = CASE WHEN m.day >= today THEN m.byok_daily ELSE 0 END + w.byok,
        byok_weekly = CASE
            WHEN m.day >= date_trunc('week', today)::date THEN m.byok_weekly ELSE 0
        END + w.byok,
        byok_monthly = CASE
            WHEN m.day >= date_trunc('month', today)::date THEN m.byok_monthly ELSE 0
        END + w.byok,
        cost = m.cost + w.cost,
        byok = m.byok + w.byok,
        held_cost = m.held_cost - w.hold,
        held_byok = m.held_byok - w.byok_hold,
        tokens = m.tokens + w.tokens,
        held_tokens = greatest(m.held_tokens - w.held_tokens, 0),
        running = greatest(m.running - w.requests, 0),
        requests_before = CASE
            WHEN m.minute >= this_minute THEN m.requests_before ELSE m.requests
        END,
        requests_before_day = CASE
            WHEN m.minute >= date_trunc('day', this_minute, 'UTC')
                THEN coalesce(m.requests_before_day, m.requests)
            ELSE m.requests
        END,
        tokens_before = CASE
            WHEN m.minute >= this_minute THEN m.tokens_before ELSE m.tokens
        END,
        minute = greatest(m.minute, this_minute)
    FROM unnest(
        tids, costs, byoks, holds, byok_holds, token_counts, held_token_counts, request_counts
    ) AS w (tid, cost, byok, hold, byok_hold, tokens, held_tokens, requests)
    WHERE m.ctid = w.tid;
    GET DIAGNOSTICS changed = ROW_COUNT;
    PERFORM causeway_require_all_1(changed, tids);
END
$$;
"""

# Refuses a change that did not find all its rows, because they were not locked.
REQUIRE_ALL = """
CREATE FUNCTION causeway_require_all_1(changed bigint, tids tid[])
RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF changed <> coalesce(cardinality(tids), 0) THEN
        RAISE EXCEPTION '% of % rows were changed, because the others were not locked',
            changed, coalesce(cardinality(tids), 0)
            USING ERRCODE = 'serialization_failure';
    END IF;
END
$$;
"""

# A new version of a row finds room in its page while the page has free space. Otherwise it goes to
# another page, and every unique index gets one more entry. A page takes rows from elsewhere only up
# to this share, so nine of ten new versions stay in their page.
ROOM = """
ALTER TABLE billing_account SET (fillfactor = 10);
ALTER TABLE billing_meter SET (fillfactor = 10);
"""


def divide_transfer(apps, schema_editor):
    divide(TRANSFERS, ("id", "reference"))


# Parameters: the subjects of meters, and the most requests a minute and a day of each; 2^62 for no
# limit. Returns whether the request was counted, which it is in all meters or in none, and the
# meters as they are now.
COUNT_REPEAT = """
CREATE FUNCTION causeway_count_repeat_1(
    subjects uuid[], minute_limits bigint[], day_limits bigint[]
) RETURNS TABLE (is_counted boolean, meter billing_meter) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    this_minute CONSTANT timestamptz := date_trunc('minute', now());
    today CONSTANT timestamptz := date_trunc('day', this_minute, 'UTC');
    has_room boolean;
BEGIN
    PERFORM 1 FROM billing_meter AS m
    WHERE m.subject_id = any(subjects) ORDER BY m.subject_id FOR NO KEY UPDATE;
    SELECT coalesce(bool_and(
        CASE WHEN m.minute >= this_minute THEN m.requests - m.requests_before ELSE 0 END
            < w.minute_limit
        AND CASE
            WHEN m.minute >= today
                THEN m.requests - coalesce(m.requests_before_day, m.requests)
            ELSE 0
        END < w.day_limit
    ), FALSE)
    INTO has_room
    FROM unnest(subjects, minute_limits, day_limits) AS w (subject_id, minute_limit, day_limit)
    INNER JOIN billing_meter AS m ON w.subject_id = m.subject_id;
    IF has_room THEN
        UPDATE billing_meter AS m
        SET
            requests = m.requests + 1,
            last_used_at = now(),
            requests_before = CASE
                WHEN m.minute >= this_minute THEN m.requests_before ELSE m.requests
            END,
            requests_before_day = CASE
                WHEN m.minute >= today THEN coalesce(m.requests_before_day, m.requests)
                ELSE m.requests
            END,
            tokens_before = CASE
                WHEN m.minute >= this_minute THEN m.tokens_before ELSE m.tokens
            END,
            minute = greatest(m.minute, this_minute)
        WHERE m.subject_id = any(subjects);
    END IF;
    RETURN QUERY SELECT has_room, m FROM billing_meter AS m WHERE m.subject_id = any(subjects);
END
$$;
"""


class Migration(migrations.Migration):
    initial = True

    replaces = [("billing", name) for name in REPLACED["billing"]]

    dependencies = [
        ("accounts", "0001_first_release"),
    ]

    operations = [
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
                (
                    "organization",
                    models.ForeignKey(
                        editable=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
                (
                    "requested_at",
                    models.DateTimeField(
                        db_default=django.db.models.functions.datetime.Now(), editable=False
                    ),
                ),
            ],
            options={
                "ordering": ("-created_at",),
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("amount_nano__gt", 0),
                            models.Q(
                                models.Q(("decided_at", None), ("status", "requested")),
                                models.Q(("decided_at__isnull", False), ("status", "declined")),
                                models.Q(
                                    ("decided_at__isnull", False),
                                    ("status", "approved"),
                                    models.Q(
                                        ("decided_by", models.F("requested_by")), _negated=True
                                    ),
                                ),
                                _connector="OR",
                            ),
                        ),
                        name="grant_request_is_consistent",
                    )
                ],
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
                    models.DateTimeField(
                        help_text="The last minute in which a request began or ended.", null=True
                    ),
                ),
                (
                    "requests_before",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="Requests before that minute."
                    ),
                ),
                ("last_used_at", models.DateTimeField(null=True)),
                (
                    "organization",
                    models.ForeignKey(
                        editable=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
                (
                    "held_tokens",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="Tokens that running requests may use."
                    ),
                ),
                (
                    "requests_before_day",
                    models.BigIntegerField(
                        help_text="Requests before the UTC day of that minute; empty until a request is counted.",
                        null=True,
                    ),
                ),
                (
                    "running",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="Requests in flight."
                    ),
                ),
                (
                    "tokens",
                    models.BigIntegerField(
                        db_default=0,
                        default=0,
                        help_text="Prompt and completion tokens of ended requests.",
                    ),
                ),
                (
                    "tokens_before",
                    models.BigIntegerField(
                        db_default=0, default=0, help_text="Tokens before that minute."
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("held_byok__gte", 0), ("held_cost__gte", 0)),
                        name="meter_holds_not_negative",
                    )
                ],
            },
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
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        editable=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="top_ups",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "verbose_name": "top-up",
                "ordering": ("-created_at", "id"),
                "indexes": [
                    models.Index(fields=["organization", "-created_at"], name="top_up_list"),
                    models.Index(fields=["chain_id", "sender", "units"], name="top_up_match"),
                    models.Index(
                        condition=models.Q(("status__in", ("open", "seen"))),
                        fields=["expires_at"],
                        name="top_up_due",
                    ),
                    models.Index(
                        condition=models.Q(("is_reserved", True)),
                        fields=["chain_id", "payable_until"],
                        name="top_up_reserved",
                    ),
                    models.Index(
                        condition=models.Q(("tx_hash", ""), _negated=True),
                        fields=["tx_hash"],
                        name="top_up_by_transaction",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "idempotency_key"), name="top_up_idempotency"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(("is_reserved", True)),
                        fields=("chain_id", "token", "sender", "units"),
                        name="top_up_told_by_its_amount",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("amount_nano__gt", 0), ("units__gt", 0)),
                        name="top_up_amount_positive",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("confirmed_at__isnull", False), ("status", "confirmed")),
                            models.Q(
                                models.Q(("status", "confirmed"), _negated=True),
                                ("confirmed_at", None),
                            ),
                            _connector="OR",
                        ),
                        name="top_up_confirmation_stamp",
                    ),
                ],
            },
        ),
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
                (
                    "organization",
                    models.ForeignKey(
                        editable=False,
                        help_text="The organization that was credited.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deposits",
                        to="accounts.organization",
                    ),
                ),
                (
                    "top_up",
                    models.ForeignKey(
                        editable=False,
                        help_text="The top-up that the deposit pays, or the nearest one.",
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="deposits",
                        to="billing.topup",
                        verbose_name="top-up",
                    ),
                ),
            ],
            options={
                "ordering": ("-created_at", "id"),
                "indexes": [
                    models.Index(
                        condition=models.Q(("status", "received")),
                        fields=["chain_id", "block_number"],
                        name="deposit_received",
                    ),
                    models.Index(
                        condition=models.Q(("status__in", ("unmatched", "under", "over", "late"))),
                        fields=["created_at"],
                        name="deposit_in_review",
                    ),
                    models.Index(fields=["tx_hash"], name="deposit_by_transaction"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("chain_id", "tx_hash", "ordinal"), name="deposit_once"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            models.Q(("organization__isnull", False), ("status", "credited")),
                            models.Q(
                                models.Q(("status", "credited"), _negated=True),
                                ("organization", None),
                            ),
                            _connector="OR",
                        ),
                        name="deposit_credited_to_somebody",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(("units__gt", 0)), name="deposit_units_positive"
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="ApiKeyMeter",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("accounts.apikey",),
        ),
        migrations.CreateModel(
            name="MemberMeter",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("accounts.member",),
        ),
        migrations.CreateModel(
            name="OrganizationAccounts",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("accounts.organization",),
        ),
        migrations.CreateModel(
            name="WorkspaceMeter",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
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
                "constraints": [
                    models.UniqueConstraint(
                        fields=("organization", "kind"), name="account_one_of_a_kind"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("pending_debits__gte", 0),
                            ("posted_credits__gte", 0),
                            ("posted_debits__gte", 0),
                        ),
                        name="account_sums_not_negative",
                    ),
                    models.CheckConstraint(
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
                ],
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
                            ("excess", "excess that was charged"),
                            ("write_off", "excess that was written off"),
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
                (
                    "credit",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="billing.account",
                    ),
                ),
                (
                    "debit",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="billing.account",
                    ),
                ),
                (
                    "organization",
                    models.ForeignKey(
                        db_constraint=False,
                        db_index=False,
                        editable=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="transfers",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "ordering": ("-id",),
                "indexes": [
                    models.Index(fields=["organization", "-id"], name="transfer_list"),
                    models.Index(
                        condition=models.Q(("kind", "usage"), _negated=True),
                        fields=["kind", "-id"],
                        name="transfer_by_kind",
                    ),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("reference__isnull", False)),
                        fields=("reference", "kind"),
                        name="transfer_once",
                    ),
                    models.CheckConstraint(
                        condition=models.Q(
                            ("amount_nano__gt", 0),
                            models.Q(
                                models.Q(
                                    ("ended_at", None), ("posted_nano", None), ("status", "pending")
                                ),
                                models.Q(
                                    ("ended_at__isnull", False),
                                    ("posted_nano", None),
                                    ("status", "voided"),
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
                ],
            },
        ),
        migrations.RunPython(divide_transfer, migrations.RunPython.noop),
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
                ("token_checked_at", models.DateTimeField(editable=False, null=True)),
                (
                    "token_verified",
                    models.CharField(
                        db_default="",
                        default="",
                        editable=False,
                        help_text="The contract and the decimals that the chain confirmed.",
                        max_length=48,
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
        migrations.CreateModel(
            name="Excess",
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
                    "reference",
                    models.CharField(
                        db_collation="C",
                        editable=False,
                        help_text="The generation.",
                        max_length=128,
                        unique=True,
                    ),
                ),
                (
                    "endpoint_id",
                    models.UUIDField(editable=False, help_text="The endpoint that answered."),
                ),
                ("provider_name", models.CharField(editable=False, max_length=255)),
                ("model", models.CharField(editable=False, max_length=255)),
                (
                    "amount_nano",
                    models.BigIntegerField(
                        editable=False,
                        help_text="What the claim would cost in credits beyond the charge.",
                    ),
                ),
                (
                    "upstream_nano",
                    models.BigIntegerField(
                        editable=False, help_text="The same at the pinned price."
                    ),
                ),
                ("claimed_prompt_tokens", models.BigIntegerField(editable=False)),
                ("claimed_completion_tokens", models.BigIntegerField(editable=False)),
                ("allowed_prompt_tokens", models.BigIntegerField(editable=False)),
                ("allowed_completion_tokens", models.BigIntegerField(editable=False)),
                (
                    "status",
                    models.CharField(
                        choices=[
                            ("under_review", "under review"),
                            ("charged", "charged"),
                            ("written_off", "written off"),
                        ],
                        default="under_review",
                        editable=False,
                        max_length=16,
                    ),
                ),
                ("decided_at", models.DateTimeField(editable=False, null=True)),
                (
                    "decided_by",
                    models.CharField(db_default="", default="", editable=False, max_length=255),
                ),
                ("note", models.TextField(db_default="", default="", editable=False)),
                (
                    "organization",
                    models.ForeignKey(
                        db_index=False,
                        editable=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="accounts.organization",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "excesses",
                "ordering": ("-created_at",),
                "indexes": [
                    models.Index(fields=["-created_at"], name="excess_list"),
                    models.Index(
                        fields=["organization", "-created_at"], name="excess_of_organization"
                    ),
                    models.Index(
                        condition=models.Q(("status", "under_review")),
                        fields=["endpoint_id"],
                        name="excess_under_review",
                    ),
                ],
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(
                            ("amount_nano__gte", 0),
                            ("upstream_nano__gte", 0),
                            models.Q(
                                models.Q(("decided_at", None), ("status", "under_review")),
                                models.Q(("decided_at__isnull", False), ("status", "written_off")),
                                models.Q(
                                    ("amount_nano__gt", 0),
                                    ("decided_at__isnull", False),
                                    ("status", "charged"),
                                ),
                                _connector="OR",
                            ),
                        ),
                        name="excess_is_consistent",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="RateLimitMeter",
            fields=[],
            options={
                "proxy": True,
                "default_permissions": (),
            },
            bases=("accounts.ratelimit",),
        ),
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
        migrations.RunSQL(REQUIRE_ALL, "DROP FUNCTION causeway_require_all_1"),
        migrations.RunSQL(HOLD_ACCOUNTS, "DROP FUNCTION causeway_hold_accounts_1"),
        migrations.RunSQL(HOLD_METERS, "DROP FUNCTION causeway_hold_meters_1"),
        migrations.RunSQL(SETTLE_ACCOUNTS, "DROP FUNCTION causeway_settle_accounts_1"),
        migrations.RunSQL(SETTLE_METERS, "DROP FUNCTION causeway_settle_meters_1"),
        migrations.RunSQL(ROOM, migrations.RunSQL.noop),
        migrations.RunSQL(COUNT_REPEAT, "DROP FUNCTION causeway_count_repeat_1"),
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
        pgtrigger.migrations.AddTrigger(
            model_name="excess",
            trigger=pgtrigger.compiler.Trigger(
                name="append_only",
                sql=config.triggers.TriggerSql(
                    func="IF TG_OP = 'UPDATE' AND (OLD.status = 'under_review' AND NEW.status IN ('charged', 'written_off'))\n   AND (NEW.id, NEW.created_at, NEW.organization_id, NEW.reference, NEW.endpoint_id, NEW.provider_name, NEW.model, NEW.amount_nano, NEW.upstream_nano, NEW.claimed_prompt_tokens, NEW.claimed_completion_tokens, NEW.allowed_prompt_tokens, NEW.allowed_completion_tokens)\n       IS NOT DISTINCT FROM\n       (OLD.id, OLD.created_at, OLD.organization_id, OLD.reference, OLD.endpoint_id, OLD.provider_name, OLD.model, OLD.amount_nano, OLD.upstream_nano, OLD.claimed_prompt_tokens, OLD.claimed_completion_tokens, OLD.allowed_prompt_tokens, OLD.allowed_completion_tokens)\nTHEN\n    RETURN NEW;\nEND IF;\nRAISE EXCEPTION 'an excess is never changed, but decided once' USING ERRCODE = 'restrict_violation';",
                    hash="ea108696acd066082a63fd089bdcbc0e2e948bb9",
                    operation="UPDATE OR DELETE",
                    pgid="pgtrigger_append_only_6c429",
                    table="billing_excess",
                    when="BEFORE",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="excess",
            trigger=pgtrigger.compiler.Trigger(
                name="audit",
                sql=config.triggers.TriggerSql(
                    condition="WHEN (current_setting('causeway.actor', true) <> '')",
                    declare="DECLARE\n    changed jsonb := CASE TG_OP WHEN 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END;\n    was jsonb;\n    becomes jsonb;",
                    func="IF TG_OP = 'UPDATE' THEN\n    SELECT jsonb_object_agg(key, o.value), jsonb_object_agg(key, n.value) INTO was, becomes\n    FROM jsonb_each(to_jsonb(OLD) - ARRAY['created_at', 'updated_at']) o JOIN jsonb_each(changed) n USING (key)\n    WHERE o.value <> n.value;\n    IF was IS NULL THEN\n        RETURN NULL;\n    END IF;\nELSE\n    SELECT jsonb_object_agg(key, value) INTO becomes\n    FROM jsonb_each(changed - ARRAY['created_at', 'updated_at']) WHERE value <> 'null';\n    IF TG_OP = 'DELETE' THEN\n        was := becomes;\n        becomes := NULL;\n    END IF;\nEND IF;\nINSERT INTO config_auditentry\n    (actor, action, kind, object_id, organization_id, \"before\", \"after\", request_id)\nVALUES (\n    current_setting('causeway.actor'), current_setting('causeway.action'), 'billing.excess',\n    changed ->> 'id', (changed ->> 'organization_id')::uuid, was, becomes,\n    current_setting('causeway.request_id')\n);\nRETURN NULL;",
                    hash="416dffbfbb941feb315d26c32b86832557e7e0c6",
                    operation="INSERT OR UPDATE OR DELETE",
                    pgid="pgtrigger_audit_e5104",
                    table="billing_excess",
                    when="AFTER",
                ),
            ),
        ),
        pgtrigger.migrations.AddTrigger(
            model_name="ratelimitmeter",
            trigger=pgtrigger.compiler.Trigger(
                name="open_meter",
                sql=config.triggers.TriggerSql(
                    func="INSERT INTO billing_meter (subject_id, organization_id)\nVALUES (NEW.subject_id, NEW.organization_id)\nON CONFLICT (subject_id) DO NOTHING;\nRETURN NULL;",
                    hash="78b4fd890614063dd5c4cb2d056b856d1be956b2",
                    operation="INSERT",
                    pgid="pgtrigger_open_meter_884bb",
                    table="accounts_ratelimit",
                    when="AFTER",
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
    ]
