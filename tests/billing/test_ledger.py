"""Tests transfers between accounts: exact amounts, single credits, no changes, no overdraft."""

from __future__ import annotations

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from billing import ledger
from billing.models import Account, Meter, Transfer
from config.api.errors import InvalidRequest, NotFound
from tests.support import factories
from tests.support.factories import Tenant

pytestmark = pytest.mark.django_db


def balances(tenant: Tenant) -> dict[str, tuple[int, int, int]]:
    rows = Account.objects.for_organization(tenant.organization.pk)
    return {row.kind: (row.posted_debits, row.posted_credits, row.pending_debits) for row in rows}


@pytest.fixture
def poor() -> Tenant:
    return factories.make_tenant("Poor", credits_usd=0)


def test_a_new_organization_has_accounts_and_meters(poor: Tenant) -> None:
    assert balances(poor) == dict.fromkeys(
        ("credits", "usage", "grants", "deposits", "write_off"), (0, 0, 0)
    )
    meters = Meter.objects.filter(organization=poor.organization)
    assert set(meters.values_list("subject_id", flat=True)) == {
        poor.workspace.pk,
        *poor.organization.api_keys.values_list("pk", flat=True),
    }


def test_grant_moves_credits(poor: Tenant) -> None:
    transfer = ledger.grant(poor.organization.pk, 1_500_000_001, actor="ops", note="welcome")
    assert (transfer.kind, transfer.status) == ("grant", "posted")
    assert (transfer.amount_nano, transfer.posted_nano) == (1_500_000_001, 1_500_000_001)
    assert (transfer.actor, transfer.note) == ("ops", "welcome")
    assert balances(poor)["credits"] == (0, 1_500_000_001, 0)
    assert balances(poor)["grants"] == (1_500_000_001, 0, 0)
    assert sum(credit - debit for debit, credit, _ in balances(poor).values()) == 0


@pytest.mark.parametrize("amount", [0, -1])
def test_grant_refuses_an_amount_that_is_not_positive(poor: Tenant, amount: int) -> None:
    with pytest.raises(InvalidRequest):
        ledger.grant(poor.organization.pk, amount, actor="ops")
    assert not Transfer.objects.filter(organization=poor.organization).exists()


def test_grant_refuses_an_unknown_organization(poor: Tenant) -> None:
    with pytest.raises(NotFound):
        ledger.grant(poor.workspace.pk, 1, actor="ops")
    assert not Transfer.objects.filter(organization=poor.organization).exists()


def test_credit_deposit_credits_a_reference_once(poor: Tenant) -> None:
    assert ledger.credit_deposit(poor.organization.pk, 7, reference="deposit:1", actor="chain")
    assert not ledger.credit_deposit(poor.organization.pk, 7, reference="deposit:1", actor="chain")
    assert balances(poor)["credits"] == (0, 7, 0)
    assert balances(poor)["deposits"] == (7, 0, 0)


def test_refund_refuses_a_generation_without_payment(poor: Tenant) -> None:
    with pytest.raises(ledger.NothingToRefund):
        ledger.refund("gen-none", actor="ops")


def test_refund_gives_back_once_what_was_paid(tenant: Tenant) -> None:
    generation = factories.make_generation(tenant, cost_nano=7)
    before = balances(tenant)["credits"]
    assert ledger.refund(generation.pk, actor="ops").amount_nano == 7
    after = balances(tenant)
    assert after["credits"] == (before[0], before[1] + 7, 0)
    with pytest.raises(ledger.NothingToRefund):
        ledger.refund(generation.pk, actor="ops")
    assert balances(tenant) == after
    assert Transfer.objects.filter(reference=generation.pk, kind="refund").count() == 1


@pytest.mark.parametrize(
    "change",
    [
        "amount_nano = 1", "note = 'other'", "status = 'voided', posted_nano = NULL",
        "status = 'pending', posted_nano = NULL, ended_at = NULL", "reference = 'gen-1'",
    ],
)  # fmt: skip
def test_database_refuses_to_change_or_delete_a_posted_transfer(poor: Tenant, change: str) -> None:
    transfer = ledger.grant(poor.organization.pk, 5, actor="ops")
    with (
        pytest.raises(DatabaseError, match="never changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"UPDATE billing_transfer SET {change} WHERE id = %s", [transfer.pk])
    with pytest.raises(DatabaseError, match="never changed"), transaction.atomic():
        Transfer.objects.filter(pk=transfer.pk).delete()
    assert Transfer.objects.get(pk=transfer.pk).amount_nano == 5


def test_database_refuses_an_overdraft(poor: Tenant) -> None:
    ledger.grant(poor.organization.pk, 5, actor="ops")
    credits_of = Account.objects.filter(organization=poor.organization, kind="credits")
    for change in ({"posted_debits": 6}, {"pending_debits": 6}):
        with pytest.raises(IntegrityError, match="account_not_overdrawn"), transaction.atomic():
            credits_of.update(**change)
    assert balances(poor)["credits"] == (0, 5, 0)
