"""Tests how operators resolve deposits and which metrics count them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from billing import ledger
from billing.models import ChainState, Deposit, TopUp, Transfer
from billing.topups import matching, watcher
from billing.topups.chains import Chain
from billing.topups.node import Cursor
from billing.topups.rpc import ChainUnavailable
from config.api.errors import InvalidTransition
from config.events.outbox import Event
from tests.support import factories
from tests.support.bulkheads.counters import authorization
from tests.support.chains.node_faults import mine, refusing
from tests.support.chains.nodes import Anvil, Contract, EthTester, Front, before, chain_of, deploy
from tests.support.chains.payments import ask, look, node_of
from tests.support.chains.watching import Offer, ask_and_pay, credited, found, status
from tests.support.database import archive
from tests.support.factories import Tenant


def test_database_refuses_to_change_or_delete_a_deposit(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    ask_and_pay(tenant, chain, token)
    token.pay(7)
    look(chain)
    exact, wrong = Deposit.objects.order_by("block_number")
    kept = "a deposit is never changed"
    for deposit in (exact, wrong):
        for change in (
            {"units": 1}, {"tx_hash": "0x"}, {"status": "received"}, {"note": "x"},
            {"finding": "late"}, {"mined_at": timezone.now()}, {"top_up": None},
        ):  # fmt: skip
            with pytest.raises(IntegrityError, match=kept), transaction.atomic():
                Deposit.objects.filter(pk=deposit.pk).update(**change)
        with pytest.raises(IntegrityError, match=kept), transaction.atomic():
            Deposit.objects.filter(pk=deposit.pk).delete()


def test_credit_credits_a_deposit_once(tenant: Tenant, chain: Chain, token: Contract) -> None:
    top_up = ask_and_pay(tenant, chain, token, over=-1)
    look(chain)
    deposit = Deposit.objects.get()
    other = factories.make_tenant("Other")
    matching.credit(deposit, tenant.organization.pk, by="operator test", note="theirs")
    deposit.refresh_from_db()
    assert (deposit.status, deposit.finding, deposit.note, deposit.resolved_by) == (
        "credited", "under", "theirs", "operator test",
    )  # fmt: skip
    assert (status(top_up), credited(tenant)) == ("confirmed", [(top_up.units - 1) * 1_000])
    for again in (
        lambda: matching.credit(deposit, other.organization.pk, by="x"),
        lambda: matching.dismiss(deposit, by="x", note="y"),
    ):
        with pytest.raises(InvalidTransition):
            again()
    assert (credited(other), len(credited(tenant))) == ([], 1)


def test_credit_accepts_any_organization_for_an_unmatched_deposit(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    token.pay(3_000_000)
    look(chain)
    matching.credit(Deposit.objects.get(), tenant.organization.pk, by="operator test")
    assert credited(tenant) == [3_000_000_000]
    assert found() == [("credited", 3_000_000)]


def test_an_exact_payment_from_another_sender_pays_the_top_up_that_asks_for_it(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    token.pay(50_000_000, to=token.payers[1])
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units, payer=1)
    look(chain)
    matching.credit(Deposit.objects.get(), tenant.organization.pk, by="operator test")
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])
    assert Event.objects.get(kind="top_up.credited").data["id"] == str(top_up.pk)
    token.pay(top_up.units)
    look(chain)
    assert found() == [("credited", top_up.units), ("over", top_up.units)]


def test_an_organization_is_not_told_the_top_up_of_another(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    """Whoever has the id of a top-up can see its page."""
    top_up = ask_and_pay(tenant, chain, token, over=1)
    look(chain)
    other, deposit = factories.make_tenant("Other"), Deposit.objects.get()
    assert deposit.top_up_id == top_up.pk
    matching.credit(deposit, other.organization.pk, by="operator test")
    told = Event.objects.get(kind="top_up.credited")
    assert (told.organization_id, told.data["id"]) == (other.organization.pk, str(deposit.pk))
    assert status(top_up) == "open"


def test_no_deposit_is_credited_by_hand_while_its_partition_is_archived(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    token.pay(3_000_000)
    look(chain)
    archive.seal_oldest(Transfer)
    with pytest.raises(ledger.BeingArchived, match="Try again"):
        matching.credit(Deposit.objects.get(), tenant.organization.pk, by="operator test")
    assert (found(), credited(tenant)) == ([("unmatched", 3_000_000)], [])


@pytest.mark.parametrize(("seconds", "after"), [(-1, "expired"), (60, "open")])
def test_dismiss_closes_the_review_of_a_top_up_after_its_last_deposit(
    tenant: Tenant, chain: Chain, token: Contract, seconds: int, after: str
) -> None:
    top_up = ask_and_pay(tenant, chain, token, over=-1)
    token.pay(top_up.units + 1)
    look(chain)
    first, second = Deposit.objects.order_by("block_number")
    matching.dismiss(first, by="operator test", note="paid back")
    assert status(top_up) == "review"
    TopUp.objects.update(expires_at=timezone.now() + timedelta(seconds=seconds))
    matching.dismiss(second, by="operator test", note="paid back")
    assert (status(top_up), credited(tenant)) == (after, [])
    assert {deposit.status for deposit in Deposit.objects.all()} == {"dismissed"}
    token.pay(top_up.units)
    look(chain)
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_credit_refuses_an_amount_above_the_range_of_the_ledger(
    tenant: Tenant, evm: EthTester, offer: Offer
) -> None:
    token = deploy(evm, supply=2**256 - 1)
    chain = offer(chain_of(token))
    look(chain)
    token.pay(2**255)
    look(chain)
    deposit = Deposit.objects.get()
    assert (deposit.status, deposit.units, deposit.amount_nano) == (
        "unmatched", 2**255, 2**255 * 1_000,
    )  # fmt: skip
    with pytest.raises(matching.NotCreditable):
        matching.credit(deposit, tenant.organization.pk, by="x")
    deposit.refresh_from_db()
    assert (deposit.status, credited(tenant)) == ("unmatched", [])


@pytest.mark.django_db(transaction=True)
def test_concurrent_operators_credit_a_deposit_once(
    chain: Chain, token: Contract, together: Callable[..., list[Any]]
) -> None:
    token.pay(3_000_000)
    look(chain)
    tenants = [factories.make_tenant(f"Org {number}") for number in range(8)]

    def resolve(mine: Tenant) -> bool:
        try:
            matching.credit(Deposit.objects.get(), mine.organization.pk, by="x")
        except InvalidTransition:
            return False
        return True

    assert sum(together(*(lambda t=t: resolve(t) for t in tenants))) == 1
    assert [amount for other in tenants for amount in credited(other)] == [3_000_000_000]


def test_metrics_count_deposits_in_review_and_halted_chains(
    anonymous: APIClient, chain: Chain, token: Contract, settings: Any
) -> None:
    token.pay(7)
    token.pay(8)
    look(chain)
    state = ChainState.objects.get()
    label = f'{{chain_id="{chain.chain_id}"}}'

    def told() -> list[str]:
        text = anonymous.get("/metrics", headers=authorization()).content.decode()
        return [
            line
            for line in text.splitlines()
            if line.startswith(("causeway_dep", "causeway_chain_h"))
        ]

    assert told() == ["causeway_deposits_in_review 2.0", f"causeway_chain_halted{label} 0.0"]
    assert state.cursor is not None
    state.halt(state.cursor, "x")
    matching.dismiss(Deposit.objects.earliest("block_number"), by="x", note="y")
    assert told() == ["causeway_deposits_in_review 1.0", f"causeway_chain_halted{label} 1.0"]
    # Nobody can resume a chain that the settings no longer name.
    settings.CHAINS = {}
    assert told() == ["causeway_deposits_in_review 1.0"]


def test_metrics_count_the_blocks_that_a_chain_is_behind(
    anonymous: APIClient, token: Contract, front: Front, fronted: Chain
) -> None:
    label = f'causeway_chain_lag_blocks{{chain_id="{fronted.chain_id}"}}'

    def told() -> list[str]:
        text = anonymous.get("/metrics", headers=authorization()).content.decode()
        return [line for line in text.splitlines() if line.startswith("causeway_chain_lag")]

    assert told() == [f"{label} 0.0"]
    token.pay(7)
    token.pay(8)
    front.fault = refusing(-32005)
    look(fronted)
    assert told() == [f"{label} 2.0"]
    # The latest block is unknown after an upgrade, for instance.
    ChainState.objects.update(latest_number=None)
    assert told() == []
    front.fault = lambda calls, answers: answers
    look(fronted)
    assert told() == [f"{label} 0.0"]


def test_an_error_in_unconfirmed_blocks_is_recorded_and_confirmed_payments_are_credited(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask_and_pay(tenant, chain, token)
    node = node_of(chain)

    def away(cursor: Cursor, latest: int, *, until: float) -> Any:
        raise ChainUnavailable("The node is away.")

    node.read_unconfirmed = away  # type: ignore[method-assign]
    ask(tenant, chain, token.payers[0])
    ChainState.objects.update(scanned_at=None)
    assert watcher.watch_chain(chain, node) == 1
    state = ChainState.objects.get()
    assert (state.failure, state.failures) == ("The node is away.", 1)
    # The alert of a late chain is about confirmed payments.
    assert state.scanned_at is not None
    assert credited(tenant) == [top_up.units * 1_000]


def test_a_payment_on_another_chain_is_not_credited(
    tenant: Tenant, chain: Chain, token: Contract, anvil: Anvil, offer: Offer
) -> None:
    own = deploy(anvil)
    mine(anvil, 3)
    with before(anvil) as front:
        base = offer(chain_of(own, url=front.url))
        look(base)
        here, there = ask(tenant, chain, token.payers[0]), ask(tenant, base, own.payers[0])
        token.pay(there.units)
        own.pay(here.units)
        mine(anvil, 3)
        look(chain)
        look(base)
    assert {name for name, _ in found()} <= {"under", "over", "unmatched"}
    assert credited(tenant) == []
