"""Tests which top-up a payment is matched with."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from billing.models import ChainState, Deposit, TooManyTopUps, TopUp, Transfer
from billing.topups import matching, watcher
from billing.topups.chains import Chain, parse_address
from config.bulk.tables import format_usd
from config.events.outbox import Event
from tests.support import factories
from tests.support.chains.node_faults import STRANGER, mine
from tests.support.chains.nodes import Anvil, Contract, EthTester, Front, chain_of, deploy
from tests.support.chains.payments import ask, look, node_of
from tests.support.chains.watching import Offer, ask_and_pay, credited, found, status
from tests.support.factories import Tenant


def test_an_exact_payment_is_credited_once(
    tenant: Tenant, inference: APIClient, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0], usd_cents=1_234)
    tx_hash = token.pay(top_up.units)

    assert [look(chain), look(chain)] == [1, 0]

    deposit = Deposit.objects.get()
    assert (deposit.status, deposit.finding, deposit.top_up_id) == (
        "credited", "credited", top_up.pk,
    )  # fmt: skip
    assert (deposit.organization_id, deposit.tx_hash) == (tenant.organization.pk, tx_hash)
    assert credited(tenant) == [top_up.units * 1_000]
    transfer = Transfer.objects.get(kind="deposit")
    assert (transfer.reference, transfer.actor) == (f"deposit:{deposit.pk}", "chain watcher")
    data = inference.get(f"/api/v1/credits/crypto/{top_up.pk}").json()["data"]
    assert (data["status"], data["transaction_hash"], data["confirmations"]) == (
        "confirmed", tx_hash, 1,
    )  # fmt: skip
    assert data["credited_at"] is not None
    event = Event.objects.get(kind="top_up.credited")
    assert event.organization_id == tenant.organization.pk
    assert event.data == {
        "id": str(top_up.pk),
        "amount_usd": format_usd(top_up.units * 1_000),
        "chain_id": chain.chain_id,
        "tx_hash": tx_hash,
    }


@pytest.mark.parametrize(("units", "finding"), [(-1, "under"), (+1, "over"), (-5_000_000, "under")])
def test_a_wrong_amount_needs_review_and_the_exact_amount_is_still_credited(
    tenant: Tenant, chain: Chain, token: Contract, units: int, finding: str
) -> None:
    top_up = ask_and_pay(tenant, chain, token, over=units)
    look(chain)
    assert found() == [(finding, top_up.units + units)]
    assert Deposit.objects.get().top_up_id == top_up.pk
    assert (status(top_up), credited(tenant)) == ("review", [])

    token.pay(top_up.units)
    look(chain)
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])
    assert Deposit.objects.in_review().count() == 1
    kinds = {"top_up.in_review", "deposit.in_review", "top_up.credited"}
    stored = list(Event.objects.filter(kind__in=kinds).values_list("kind", "organization_id"))
    assert sorted(stored, key=str) == [
        ("deposit.in_review", None),
        ("top_up.credited", tenant.organization.pk),
        ("top_up.in_review", tenant.organization.pk),
    ]


def test_a_wrong_amount_is_matched_with_the_nearest_top_up(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    small, large = (ask(tenant, chain, token.payers[0], usd_cents=cents) for cents in (100, 1_000))
    token.pay(9_000_000)
    look(chain)
    deposit = Deposit.objects.get()
    assert (deposit.status, deposit.top_up_id) == ("under", large.pk)
    assert (status(small), status(large)) == ("open", "review")


def test_a_payment_of_another_sender_is_unmatched(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    token.pay(50_000_000, to=token.payers[1])
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units, payer=1)
    look(chain)
    assert found() == [("unmatched", top_up.units)]
    assert (status(top_up), credited(tenant)) == ("open", [])


def test_a_top_up_that_names_the_sender_of_another_organization_does_not_take_its_payment(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    thief = factories.make_tenant("Thief")
    stolen = [ask(thief, chain, token.payers[0]) for _ in range(5)]
    top_up = ask_and_pay(tenant, chain, token)
    look(chain)
    assert (credited(tenant), credited(thief)) == ([top_up.units * 1_000], [])
    assert [status(other) for other in stolen] == ["open"] * 5


def test_a_wrong_amount_is_unmatched_when_several_organizations_name_its_sender(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    """Pays a rounded amount that is close to top-ups of two organizations."""
    thief = factories.make_tenant("Thief")
    stolen = [ask(thief, chain, token.payers[0]) for _ in range(5)]
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(10_000_000)
    look(chain)
    assert (found(), Deposit.objects.get().top_up_id) == ([("unmatched", 10_000_000)], None)
    assert [status(other) for other in (top_up, *stolen)] == ["open"] * 6
    assert list(matching.matching_top_ups(Deposit.objects.get()).order_by("created_at")) == [
        *stolen,
        top_up,
    ]


def test_a_wrong_amount_is_unmatched_when_one_of_two_organizations_was_paid(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    ask(factories.make_tenant("Thief"), chain, token.payers[0])
    token.pay(10_000_000)
    look(chain)
    assert found() == [("credited", top_up.units), ("unmatched", 10_000_000)]


def test_a_late_payment_is_unmatched_when_several_organizations_had_its_amount(
    tenant: Tenant, chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.topups.models.top_ups.MAX_TAIL", 1)
    past = timezone.now() - timedelta(days=1)
    for other in (tenant, factories.make_tenant("Thief")):
        ask(other, chain, token.payers[0])
        TopUp.objects.update(expires_at=past, payable_until=past, is_reserved=False)
    token.pay(10_000_001)
    look(chain)
    assert found() == [("unmatched", 10_000_001)]


@pytest.mark.parametrize(
    ("units", "seconds", "finding"),
    [
        (10_000_001, 15, "credited"),
        (10_000_001, 16, "unmatched"),
        (10_000_000, 0, "under"),
        (10_000_000, 1, "unmatched"),
    ],
)
def test_a_top_up_created_after_a_payment_does_not_take_it(
    tenant: Tenant, chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch, units: int,
    seconds: int, finding: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("billing.topups.models.top_ups.MAX_TAIL", 1)
    token.pay(units)
    mined_at = node_of(chain).read_confirmed_head().mined_at
    ask(tenant, chain, token.payers[0])
    TopUp.objects.update(created_at=mined_at + timedelta(seconds=seconds))
    look(chain)
    assert found() == [(finding, units)]


def test_other_tokens_and_forged_events_are_ignored(
    tenant: Tenant, chain: Chain, evm: EthTester, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    other = deploy(evm)
    other.pay(top_up.units)
    other.pretend(token.payers[0], top_up.units)
    token.pay(top_up.units, to=STRANGER)
    evm.rpc("eth_sendTransaction", {"from": token.payers[0], "to": chain.recipient, "value": 5})
    look(chain)
    assert (found(), status(top_up), credited(tenant)) == ([], "open", [])


@pytest.mark.parametrize("changes", ["recipient", "token", "both"])
def test_a_top_up_from_before_a_change_of_the_settings_is_credited(
    tenant: Tenant, anvil: Anvil, offer: Offer, changes: str
) -> None:
    old, new = deploy(anvil), deploy(anvil)
    mine(anvil, 6)
    chain = offer(chain_of(old, confirmations=1))
    look(chain)
    top_up = ask(tenant, chain, old.payers[0])
    token, recipient = (
        new if changes != "recipient" else old,
        parse_address(STRANGER) if changes != "token" else chain.recipient,
    )
    changed = offer(
        dataclasses.replace(
            chain, token=dataclasses.replace(chain.token, contract=token.address),
            recipient=recipient,
        )
    )  # fmt: skip
    look(changed)
    later = ask(tenant, changed, token.payers[0])
    old.pay(top_up.units)
    look(changed)
    assert status(top_up) == "seen"
    token.pay(later.units, to=recipient)
    mine(anvil, 1)
    look(changed)
    assert (status(top_up), status(later)) == ("confirmed", "confirmed")
    assert credited(tenant) == [top_up.units * 1_000, later.units * 1_000]


def test_a_former_recipient_is_read_only_while_a_top_up_reserves_its_amount(
    tenant: Tenant, token: Contract, front: Front, offer: Offer, fronted: Chain
) -> None:
    top_up = ask(tenant, fronted, token.payers[0])
    changed = offer(dataclasses.replace(fronted, recipient=parse_address(STRANGER)))
    for is_reserved in (True, False):
        TopUp.objects.update(is_reserved=is_reserved)
        token.pay(5)
        look(changed)
    assert found() == [("under", 5)]
    assert Deposit.objects.get().top_up_id == top_up.pk
    to = ["0x" + address[2:].lower().rjust(64, "0") for address in (STRANGER, fronted.recipient)]
    assert [wanted["topics"][2] for (wanted,) in front.asked("eth_getLogs")] == [to, to[0]]


def test_two_transfers_in_one_transaction_are_two_payments(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    first, second = ask(tenant, chain, token.payers[0]), ask(tenant, chain, token.payers[0])
    tx_hash = token.pay_twice(first.units, second.units)
    look(chain)
    rows = list(Deposit.objects.order_by("ordinal"))
    assert [(row.tx_hash, row.ordinal) for row in rows] == [(tx_hash, 1), (tx_hash, 3)]
    assert [row.status for row in rows] == ["credited", "credited"]
    assert credited(tenant) == [first.units * 1_000, second.units * 1_000]


def test_a_reverted_transfer_is_ignored(tenant: Tenant, anvil: Anvil, offer: Offer) -> None:
    own = deploy(anvil, supply=10)
    mine(anvil, 2)
    watched = offer(chain_of(own))
    look(watched)
    top_up = ask(tenant, watched, own.payers[0])
    tx_hash = own.pay(top_up.units)
    assert anvil.rpc("eth_getTransactionReceipt", tx_hash)["status"] == "0x0"
    mine(anvil, 3)
    look(watched)
    assert (found(), status(top_up), credited(tenant)) == ([], "open", [])


def test_a_payment_in_the_grace_period_is_credited(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    now = timezone.now()
    TopUp.objects.update(
        expires_at=now - timedelta(hours=1), payable_until=now + timedelta(hours=1)
    )
    assert watcher.expire_due_top_ups() == 1
    assert status(top_up) == "expired"
    token.pay(top_up.units)
    look(chain)
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


@pytest.mark.parametrize("is_released", [False, True])
def test_a_payment_after_the_grace_period_needs_review(
    tenant: Tenant, chain: Chain, evm: EthTester, token: Contract, is_released: bool
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    now = timezone.now()
    TopUp.objects.update(expires_at=now - timedelta(days=2), payable_until=now - timedelta(days=1))
    if is_released:
        evm.rpc("evm_mine")
        look(chain)
        top_up.refresh_from_db()
        assert not top_up.is_reserved
    token.pay(top_up.units)
    look(chain)
    assert found() == [("late", top_up.units)]
    assert (Deposit.objects.get().top_up_id, status(top_up)) == (top_up.pk, "review")
    assert credited(tenant) == []


def test_a_payment_at_the_end_of_the_grace_period_is_credited(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    """Compares the time of the block, not the time of its confirmation."""
    top_up = ask_and_pay(tenant, chain, token)
    ((payments, cursor),) = node_of(chain).scan(ChainState.objects.get().cursor)
    mined_at = payments[0].mined_at
    TopUp.objects.update(expires_at=mined_at, payable_until=mined_at, created_at=mined_at)
    assert Deposit.objects.store_batch(ChainState.objects.get(), chain, payments, cursor) is True
    assert watcher.match_received_deposits(ChainState.objects.get()) == 1
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_a_payment_made_before_the_top_up_is_unmatched(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    TopUp.objects.update(created_at=timezone.now() + timedelta(hours=1))
    look(chain)
    assert (found(), credited(tenant)) == ([("unmatched", top_up.units)], [])


def test_a_second_payment_of_the_same_amount_needs_review(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    token.pay(top_up.units)
    look(chain)
    assert found() == [("credited", top_up.units), ("over", top_up.units)]
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_an_amount_stays_reserved_until_the_end_of_the_grace_period(
    tenant: Tenant, chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.topups.models.top_ups.MAX_TAIL", 1)
    top_up = ask_and_pay(tenant, chain, token)
    look(chain)
    assert status(top_up) == "confirmed"
    assert watcher.release_amounts(chain.chain_id, top_up.payable_until) == 0
    with pytest.raises(TooManyTopUps):
        ask(tenant, chain, token.payers[0])
    top_up.pk = uuid4()
    with pytest.raises(IntegrityError, match="top_up_told_by_its_amount"), transaction.atomic():
        top_up.save(force_insert=True)
    after = top_up.payable_until + timedelta(seconds=1)
    assert watcher.release_amounts(chain.chain_id, after) == 1
    assert ask(tenant, chain, token.payers[0]).units == top_up.units


def test_release_amounts_waits_until_every_received_deposit_is_matched(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(7)
    watcher.read_payments(chain, node_of(chain), ChainState.objects.get())
    after = top_up.payable_until + timedelta(seconds=1)
    assert watcher.release_amounts(chain.chain_id, after) == 0
    watcher.match_received_deposits(ChainState.objects.get())
    assert watcher.release_amounts(chain.chain_id, after) == 1
