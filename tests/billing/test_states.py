"""Tests every transition of grant requests, excesses and transfers against a table."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from billing import ledger, reviews
from billing.models import Account, Excess, GrantRequest, NotChargeable, SameOperator, Transfer
from billing.verification import find_differences
from config.api.errors import InvalidTransition
from tests.support import factories
from tests.support.database.states import cells, check_transition
from tests.support.factories import Tenant

REFUSED = InvalidTransition


def status_of(row: GrantRequest | Excess) -> str:
    return str(row.status)


REQUEST_TRANSITIONS: dict[str, Callable[[GrantRequest], object]] = {
    "approve": lambda request: request.approve(by="operator bob"),
    "approve as the requester": lambda request: request.approve(by="operator ann"),
    "decline": lambda request: request.decline(by="bob"),
    "decline as the requester": lambda request: request.decline(by="ann"),
}

# The columns are in the order of REQUEST_TRANSITIONS.
REQUESTS: dict[str, tuple[Any, ...]] = {
    "requested": ("approved", SameOperator, "declined", "declined"),
    "approved": (REFUSED, REFUSED, REFUSED, REFUSED),
    "declined": (REFUSED, REFUSED, REFUSED, REFUSED),
}


@pytest.mark.parametrize(("state", "transition", "expected"), cells(REQUESTS, REQUEST_TRANSITIONS))
def test_each_transition_of_a_grant_request_has_the_expected_result(
    tenant: Tenant, state: str, transition: str, expected: Any
) -> None:
    for name in ("bob", "eve"):
        User.objects.create_superuser(name)
    request = GrantRequest.objects.create(
        organization=tenant.organization, amount_nano=5, requested_by="operator ann"
    )
    if state == "approved":
        request.approve(by="operator eve")
    if state == "declined":
        request.decline(by="eve")

    transit = partial(REQUEST_TRANSITIONS[transition], request)
    check_transition(request, transit, expected, status_of)


EXCESS_TRANSITIONS: dict[str, Callable[[Excess], object]] = {
    "charge": lambda excess: reviews.charge(excess, by="bob"),
    "write off": lambda excess: reviews.write_off(excess, by="bob"),
}

# The columns are in the order of EXCESS_TRANSITIONS.
EXCESSES: dict[str, tuple[Any, ...]] = {
    "under_review": ("charged", "written_off"),
    "charged": (REFUSED, REFUSED),
    "written_off": (REFUSED, REFUSED),
}


@pytest.mark.parametrize(("state", "transition", "expected"), cells(EXCESSES, EXCESS_TRANSITIONS))
def test_each_transition_of_an_excess_has_the_expected_result(
    tenant: Tenant, state: str, transition: str, expected: Any
) -> None:
    excess = factories.make_excess(tenant)
    if state == "charged":
        reviews.charge(excess, by="eve")
    if state == "written_off":
        reviews.write_off(excess, by="eve")

    transit = partial(EXCESS_TRANSITIONS[transition], excess)
    check_transition(excess, transit, expected, status_of)
    moved = Transfer.objects.filter(reference="gen-1").values_list("kind", "posted_nano")
    kinds = {"charged": [("excess", 5)], "written_off": [("write_off", 5)], "under_review": []}
    assert list(moved) == kinds[Excess.objects.get().status]
    assert find_differences() == []


def test_an_excess_that_costs_nothing_is_only_written_off(tenant: Tenant) -> None:
    excess = factories.make_excess(tenant, 0)
    with pytest.raises(NotChargeable, match="nothing to charge"):
        reviews.charge(excess, by="bob")
    assert Excess.objects.get().status == "under_review"
    reviews.write_off(excess, by="bob", note="free")
    assert (excess.status, excess.note, excess.decided_by) == ("written_off", "free", "bob")
    assert not Transfer.objects.filter(reference="gen-1").exists()


def test_an_excess_is_charged_whole_or_not_at_all(tenant: Tenant) -> None:
    account = Account.objects.get(organization=tenant.organization, kind="credits")
    excess = factories.make_excess(tenant, account.available + 1)
    with pytest.raises(NotChargeable, match="less available"):
        reviews.charge(excess, by="bob")
    assert Excess.objects.get().status == "under_review"
    assert Account.objects.get(pk=account.pk).available == account.available
    ledger.grant(tenant.organization.pk, 1, actor="bob")
    reviews.charge(excess, by="bob")
    assert Account.objects.get(pk=account.pk).available == 0
    assert find_differences() == []


def transfer(tenant: Tenant, debit: str, credit: str, **fields: Any) -> Transfer:
    """Stores a transfer of 5 without a change to the balances of its accounts."""
    accounts = {row.kind: row for row in Account.objects.for_organization(tenant.organization.pk)}
    sides = {"debit": accounts[debit], "credit": accounts[credit]}
    return Transfer.objects.create(
        organization=tenant.organization, amount_nano=5, **sides, **fields
    )


def test_an_excess_of_a_refunded_generation_is_not_charged(tenant: Tenant) -> None:
    ended = {"posted_nano": 5, "status": "posted", "ended_at": timezone.now()}
    transfer(tenant, "usage", "credits", kind=Transfer.Kind.REFUND, reference="gen-1", **ended)
    with pytest.raises(NotChargeable, match="was refunded"):
        reviews.charge(factories.make_excess(tenant), by="bob")
    assert Excess.objects.get().status == "under_review"


@pytest.mark.parametrize("change", [{"amount_nano": 1}, {"reference": "gen-2"}, {"note": "x"}])
def test_database_refuses_to_change_an_excess_but_once(
    tenant: Tenant, change: dict[str, Any]
) -> None:
    excess = factories.make_excess(tenant)
    rows = Excess.objects.filter(pk=excess.pk)
    decided = {"status": "written_off", "decided_at": timezone.now()}
    if "note" in change:
        rows.update(**decided)
        decided = {}
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        rows.update(**decided, **change)
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        rows.delete()


@pytest.mark.parametrize("after", Transfer.Status.values)
@pytest.mark.parametrize("before", Transfer.Status.values)
def test_database_lets_a_pending_transfer_end_once(tenant: Tenant, before: str, after: str) -> None:
    def columns(status: str) -> dict[str, Any]:
        return {
            "status": status,
            "posted_nano": 3 if status == "posted" else None,
            "ended_at": None if status == "pending" else timezone.now(),
        }

    made = transfer(tenant, "credits", "usage", kind=Transfer.Kind.USAGE, **columns(before))
    rows = Transfer.objects.filter(pk=made.pk)
    if before == "pending" and after != "pending":
        assert rows.update(**columns(after)) == 1
    else:
        with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
            rows.update(**columns(after))
        assert rows.get().status == before
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        rows.update(note="changed")
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        rows.delete()
