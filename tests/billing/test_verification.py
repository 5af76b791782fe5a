"""Tests ``verify_ledger``, which reports each kind of difference, and ``grant_credits``."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from billing import ledger
from billing import verification as audit
from billing.models import Account, Deposit, Transfer
from inference.models import Generation
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant


def verify() -> tuple[int, list[str]]:
    """Runs the command; returns its exit code and the differences that it prints."""
    output = io.StringIO()
    code = 0
    try:
        call_command("verify_ledger", "--json", stdout=output, stderr=io.StringIO())
    except CommandError as exc:
        code = exc.returncode
    return code, json.loads(output.getvalue())["differences"]


@contextmanager
def tampering(*tables: str) -> Iterator[None]:
    """Disables the triggers that protect the tables, for the time of the block."""
    with connection.cursor() as cursor:
        # PostgreSQL refuses to alter a table while deferred constraint checks are pending.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
        yield
        for table in tables:
            cursor.execute(f"ALTER TABLE {table} ENABLE TRIGGER USER")


def account(tenant: Tenant, kind: str) -> Account:
    return Account.objects.get(organization=tenant.organization, kind=kind)


def transfer(tenant: Tenant, debit: str, credit: str, **fields: Any) -> Transfer:
    """Stores a transfer without a change to the balances of its accounts."""
    defaults = {"amount_nano": 5, "posted_nano": 5, "status": "posted", "ended_at": timezone.now()}
    return Transfer.objects.create(
        organization=tenant.organization,
        debit=account(tenant, debit),
        credit=account(tenant, credit),
        **{**defaults, **fields},
    )


def test_verify_ledger_finds_no_difference_in_a_correct_ledger(tenant: Tenant) -> None:
    ledger.grant(tenant.organization.pk, 7, actor="test")
    assert audit.find_differences() == []
    assert verify() == (0, [])


def test_verify_ledger_reports_an_account_that_differs_from_its_transfers(tenant: Tenant) -> None:
    purse = account(tenant, "credits")
    before = purse.posted_credits
    Account.objects.filter(pk=purse.pk).update(posted_credits=before + 1, pending_debits=2)
    account_text = (
        f"account {purse.pk} (credits of {tenant.organization.pk}): posted 0 debits and "
        f"{before + 1} credits, pending 2; its transfers make 0, {before}, 0"
    )
    sum_text = f"organization {tenant.organization.pk}: its accounts add up to 1 instead of 0"
    assert verify() == (1, [account_text, sum_text])


def test_find_differences_reports_a_transfer_between_organizations(tenant: Tenant) -> None:
    other = factories.make_tenant("Other")
    with tampering("billing_transfer"):
        row = Transfer.objects.for_organization(tenant.organization.pk).latest("id")
        Transfer.objects.filter(pk=row.pk).update(organization=other.organization)
    text = f"transfer {row.pk}: its accounts are not those of organization {other.organization.pk}"
    assert audit.find_differences() == [text]


def test_verify_refunds_reports_a_refund_above_the_payment(tenant: Tenant) -> None:
    transfer(tenant, "credits", "usage", kind="usage", reference="gen-1", amount_nano=9)
    transfer(
        tenant, "usage", "credits", kind="refund", reference="gen-1", amount_nano=6, posted_nano=6
    )
    assert audit.run_check(audit.VERIFY_REFUNDS) == ["generation gen-1: 6 refunded of 5 paid"]


def test_find_differences_reports_a_deposit_without_its_transfer_and_the_reverse(
    tenant: Tenant,
) -> None:
    deposit = Deposit.objects.create(
        chain_id=1, tx_hash="0x1", ordinal=0, block_number=1, block_hash="0x2",
        mined_at=timezone.now(), token="0x3", token_symbol="T", token_decimals=6, sender="0x4",
        recipient="0x5", units=5, amount_nano=5_000, status="credited", finding="credited",
        organization=tenant.organization,
    )  # fmt: skip
    assert audit.find_differences() == [f"deposit {deposit.pk}: credited without a transfer"]
    ledger.credit_deposit(tenant.organization.pk, 4_999, reference=deposit.reference, actor="test")
    organization_id = tenant.organization.pk
    assert audit.find_differences() == [
        f"deposit {deposit.pk}: 5000 to {organization_id}, its transfer 4999 to {organization_id}"
    ]
    with tampering("billing_deposit"):
        Deposit.objects.all().delete()
    row = Transfer.objects.get(kind="deposit")
    text = f"transfer {row.pk}: there is no credited deposit:{deposit.pk}"
    assert audit.find_differences() == [text]


def test_verify_ledger_reports_a_generation_that_did_not_pay_its_cost(tenant: Tenant) -> None:
    ended = factories.make_generation(tenant, cost_nano=5)
    pending = factories.make_generation(tenant, status=Generation.Status.PENDING)
    assert verify() == (0, [])
    Generation.objects.filter(pk=ended.pk).update(cost_nano=6)
    Generation.objects.filter(pk=pending.pk).update(hold_nano=7, upstream_hold_nano=3)
    code, found = verify()
    told = {text.partition(": ")[2] for text in found}
    assert (code, len(found)) == (1, 4)
    assert f"generation {ended.pk}: ended at a cost of 6, its transfers paid 5 and hold 0" in found
    assert f"generation {pending.pk}: holds 7, its transfers hold 0 and paid 0" in found
    # The meters of the key and of the workspace give this text.
    assert (
        "cost 5, own credentials 0, held 0 and 0; its generations make 6, 0, 7 and 3; "
        "0 requests run with 0 tokens; its generations make 0 and 0"
    ) in told


def test_verify_ledger_reports_transfers_without_a_generation(tenant: Tenant) -> None:
    transfer(tenant, "credits", "usage", kind="usage", reference="gen-nobody")
    code, found = verify()
    assert code == 1
    assert "generation gen-nobody: it has transfers and does not exist" in found


def test_verify_ledger_prints_a_line_for_each_difference(tenant: Tenant) -> None:
    Account.objects.filter(pk=account(tenant, "usage").pk).update(posted_debits=1)
    output = io.StringIO()
    with pytest.raises(CommandError, match=r"^2 differences\.$") as caught:
        call_command("verify_ledger", stdout=output)
    assert caught.value.returncode == 1
    assert len(output.getvalue().splitlines()) == 2


def test_grant_credits_posts_a_transfer(tenant: Tenant) -> None:
    before = account(tenant, "credits").balance
    output = io.StringIO()
    call_command(
        "grant_credits", str(tenant.organization.pk), "12.000000001", "--note", "thanks", "--json",
        stdout=output,
    )  # fmt: skip
    row = Transfer.objects.latest("id")
    assert (row.kind, row.posted_nano, row.note) == ("grant", 12_000_000_001, "thanks")
    assert json.loads(output.getvalue()) == {
        "transfer_id": row.pk,
        "balance": (before + 12_000_000_001) / 10**9,
    }
    assert audit.find_differences() == []


@pytest.mark.parametrize(
    "amount", ["0", "0.0", "1.0000000001", "1e3", "+1", " 1", "1\n", "x", "", "1,5", "1" * 10]
)
def test_grant_credits_refuses_an_invalid_amount(tenant: Tenant, amount: str) -> None:
    with snapshots.unchanged(), pytest.raises(CommandError) as caught:
        call_command("grant_credits", str(tenant.organization.pk), amount)
    assert caught.value.returncode == 1


@pytest.mark.parametrize("note", ["x" * 1_001, "a\x00b"])
def test_grant_credits_refuses_an_invalid_note(tenant: Tenant, note: str) -> None:
    with pytest.raises(CommandError):
        call_command("grant_credits", str(tenant.organization.pk), "1", "--note", note)
    assert Transfer.objects.filter(note=note.replace("\x00", "")).count() == 0


def test_grant_credits_refuses_an_unknown_organization(db: None) -> None:
    with pytest.raises(CommandError, match=r"^There is no such organization\.$"):
        call_command("grant_credits", str(uuid4()), "1")
