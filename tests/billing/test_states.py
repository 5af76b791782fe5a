"""Tests every transition of grant requests and transfers against a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.models import Account, GrantRequest, SameOperator, Transfer
from config.api.errors import InvalidTransition
from tests.support.database.states import check_transition
from tests.support.factories import Tenant

REFUSED = InvalidTransition

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


@pytest.mark.parametrize(
    ("state", "transition", "expected"),
    [
        (state, transition, expected)
        for state, row in REQUESTS.items()
        for transition, expected in zip(REQUEST_TRANSITIONS, row, strict=True)
    ],
)
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

    check_transition(
        request,
        lambda: REQUEST_TRANSITIONS[transition](request),
        expected,
        lambda row: str(row.status),
    )


@pytest.mark.parametrize("after", Transfer.Status.values)
@pytest.mark.parametrize("before", Transfer.Status.values)
def test_database_lets_a_pending_transfer_end_once(tenant: Tenant, before: str, after: str) -> None:
    accounts = {row.kind: row for row in Account.objects.for_organization(tenant.organization.pk)}

    def columns(status: str) -> dict[str, Any]:
        return {
            "status": status,
            "posted_nano": 3 if status == "posted" else None,
            "ended_at": None if status == "pending" else timezone.now(),
        }

    transfer = Transfer.objects.create(
        organization=tenant.organization,
        kind=Transfer.Kind.USAGE,
        debit=accounts["credits"],
        credit=accounts["usage"],
        amount_nano=5,
        **columns(before),
    )
    rows = Transfer.objects.filter(pk=transfer.pk)
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
