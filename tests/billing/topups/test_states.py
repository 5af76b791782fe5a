"""Tests every transition of top-ups and deposits against a table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from billing.models import Deposit, TopUp
from config.api.errors import InvalidTransition
from tests.support.database.states import cells, check_transition
from tests.support.factories import Tenant

REFUSED = InvalidTransition
PAYMENT = {"tx_hash": "0x" + "ab" * 32, "block_number": 7}
ADDRESSES = {
    "chain_id": 1, "token": "0x" + "1" * 40, "token_symbol": "USDC", "token_decimals": 6,
    "sender": "0x" + "2" * 40, "recipient": "0x" + "3" * 40,
}  # fmt: skip

TOP_UP_TRANSITIONS: dict[str, Callable[[TopUp], object]] = {
    "mark_seen": lambda top_up: top_up.mark_seen(**PAYMENT),
    "mark_unseen": lambda top_up: top_up.mark_unseen(),
    "confirm": lambda top_up: top_up.confirm(**PAYMENT),
    "expire": lambda top_up: top_up.expire(),
    "send_to_review": lambda top_up: top_up.send_to_review(),
    "close_review": lambda top_up: top_up.close_review(),
}

# The columns are in the order of TOP_UP_TRANSITIONS; one table is for the time before
# ``expires_at``, the other for the time after it.
TOP_UPS_BEFORE: dict[str, tuple[Any, ...]] = {
    "open": ("seen", False, "confirmed", False, "review", REFUSED),
    "seen": ("seen", "open", "confirmed", False, "review", REFUSED),
    "confirmed": (False, False, REFUSED, False, False, REFUSED),
    "expired": ("seen", False, "confirmed", False, "review", REFUSED),
    "review": (False, False, "confirmed", False, False, "open"),
}
TOP_UPS_AFTER = {
    **TOP_UPS_BEFORE,
    "open": ("seen", False, "confirmed", "expired", "review", REFUSED),
    "review": (False, False, "confirmed", False, False, "expired"),
}


def make_top_up(tenant: Tenant, status: str, *, is_due: bool) -> TopUp:
    now = timezone.now()
    expires_at = now - timedelta(minutes=1) if is_due else now + timedelta(minutes=1)
    top_up = TopUp(
        organization=tenant.organization,
        status=status,
        amount_nano=10**10,
        units=10_000_001,
        expires_at=expires_at,
        payable_until=expires_at + timedelta(days=1),
        confirmed_at=now if status == "confirmed" else None,
        request_fingerprint="",
        **ADDRESSES,
    )
    top_up.save(force_insert=True)
    return top_up


def status_of(row: TopUp | Deposit) -> str:
    return str(row.status)


@pytest.mark.parametrize("is_due", [False, True])
@pytest.mark.parametrize(
    ("state", "transition"), [cell[:2] for cell in cells(TOP_UPS_BEFORE, TOP_UP_TRANSITIONS)]
)
def test_each_transition_of_a_top_up_has_the_expected_result(
    tenant: Tenant, state: str, transition: str, is_due: bool
) -> None:
    table = TOP_UPS_AFTER if is_due else TOP_UPS_BEFORE
    expected = table[state][list(TOP_UP_TRANSITIONS).index(transition)]
    top_up = make_top_up(tenant, state, is_due=is_due)

    check_transition(top_up, lambda: TOP_UP_TRANSITIONS[transition](top_up), expected, status_of)


DEPOSIT_TRANSITIONS: dict[str, Callable[[Deposit, TopUp], object]] = {
    "match": lambda deposit, top_up: deposit.record_match(Deposit.Status.CREDITED, top_up),
    "send to review": lambda deposit, top_up: deposit.record_match(Deposit.Status.LATE, top_up),
    "credit": lambda deposit, top_up: deposit.resolve(
        organization_id=top_up.organization_id, by="test", note=""
    ),
    "dismiss": lambda deposit, top_up: deposit.resolve(
        organization_id=None, by="test", note="paid back"
    ),
}

# The columns are in the order of DEPOSIT_TRANSITIONS.
DEPOSITS: dict[str, tuple[Any, ...]] = {
    "received": ("credited", "late", REFUSED, REFUSED),
    "credited": (REFUSED, REFUSED, REFUSED, REFUSED),
    "unmatched": (REFUSED, REFUSED, "credited", "dismissed"),
    "under": (REFUSED, REFUSED, "credited", "dismissed"),
    "over": (REFUSED, REFUSED, "credited", "dismissed"),
    "late": (REFUSED, REFUSED, "credited", "dismissed"),
    "dismissed": (REFUSED, REFUSED, REFUSED, REFUSED),
}


def make_deposit(tenant: Tenant, status: str) -> Deposit:
    deposit = Deposit(
        status=status,
        organization=tenant.organization if status == "credited" else None,
        tx_hash="0x" + "cd" * 32,
        ordinal=0,
        block_number=7,
        block_hash="0x" + "ef" * 32,
        mined_at=timezone.now(),
        units=10_000_001,
        amount_nano=10_000_001_000,
        **ADDRESSES,
    )
    deposit.save(force_insert=True)
    return deposit


@pytest.mark.parametrize(("state", "transition", "expected"), cells(DEPOSITS, DEPOSIT_TRANSITIONS))
def test_each_transition_of_a_deposit_has_the_expected_result(
    tenant: Tenant, state: str, transition: str, expected: Any
) -> None:
    deposit = make_deposit(tenant, state)
    top_up = make_top_up(tenant, "review", is_due=False)

    check_transition(
        deposit, lambda: DEPOSIT_TRANSITIONS[transition](deposit, top_up), expected, status_of
    )


@pytest.mark.parametrize("after", Deposit.Status.values)
@pytest.mark.parametrize("before", Deposit.Status.values)
def test_the_database_refuses_every_other_status_of_a_deposit(
    tenant: Tenant, before: str, after: str
) -> None:
    deposit = make_deposit(tenant, before)
    rows = Deposit.objects.filter(pk=deposit.pk)
    is_allowed = after in (("credited", "dismissed") if before in Deposit.REVIEWED else ())
    changes = {
        "status": after,
        "resolved_at": timezone.now(),
        "organization": tenant.organization if after == "credited" else None,
    }
    if is_allowed:
        assert rows.update(**changes) == 1
    else:
        with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
            rows.update(**changes)
        assert rows.get().status == before
