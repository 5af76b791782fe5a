"""Payments become credits: on real nodes, under faults, kills and races, and once each."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from rest_framework.test import APIClient

from billing import verification as audit
from billing.models import ChainState, Deposit, TooManyTopUps, TopUp, Transfer
from billing.topups import matching, watcher
from billing.topups import node as chain_module
from billing.topups.chains import Chain, parse_address
from billing.topups.node import Cursor
from billing.topups.rpc import ChainUnavailable
from config.api.errors import InvalidRequest, InvalidTransition
from config.models import Lease
from tests.billing.conftest import ask, look, node_of
from tests.billing.topups.test_node import FAULTS, STRANGER, failing_after, limited_to, of, ranges
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.nodes import (
    Answers,
    Anvil,
    Contract,
    EthTester,
    Front,
    before,
    chain_of,
    deploy,
    http_response,
)

Offer = Callable[[Chain], Chain]


def mine(node: Anvil, blocks: int) -> None:
    node.rpc("anvil_mine", hex(blocks))


def found() -> list[tuple[str, int]]:
    """What came in, as it was judged, in the order of the chain."""
    rows = Deposit.objects.order_by("block_number", "tx_hash", "ordinal")
    return [(deposit.status, deposit.units) for deposit in rows]


def credited(tenant: Tenant) -> list[int]:
    """The amounts of the organization's deposit transfers, in nano-USD."""
    rows = Transfer.objects.for_organization(tenant.organization.pk).filter(kind="deposit")
    return list(rows.order_by("id").values_list("posted_nano", flat=True))


def status(top_up: TopUp) -> str:
    top_up.refresh_from_db()
    return str(top_up.status)


def test_an_exact_payment_is_credited_once(
    tenant: Tenant, inference: APIClient, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0], usd_cents=1_234)
    tx_hash = token.pay(top_up.units)

    assert [look(chain), look(chain)] == [1, 0]

    deposit = Deposit.objects.get()
    assert (deposit.status, deposit.finding, deposit.top_up_id) == (
        "credited",
        "credited",
        top_up.pk,
    )
    assert (deposit.organization_id, deposit.tx_hash) == (tenant.organization.pk, tx_hash)
    assert credited(tenant) == [top_up.units * 1_000]
    transfer = Transfer.objects.get(kind="deposit")
    assert (transfer.reference, transfer.actor) == (f"deposit:{deposit.pk}", "chain watcher")
    data = inference.get(f"/api/v1/credits/crypto/{top_up.pk}").json()["data"]
    assert (data["status"], data["transaction_hash"], data["confirmations"]) == (
        "confirmed", tx_hash, 1,
    )  # fmt: skip
    assert data["credited_at"] is not None


@pytest.mark.parametrize(("units", "finding"), [(-1, "under"), (+1, "over"), (-5_000_000, "under")])
def test_another_amount_waits_for_an_operator_and_the_exact_one_still_pays(
    tenant: Tenant, chain: Chain, token: Contract, units: int, finding: str
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units + units)
    look(chain)
    assert found() == [(finding, top_up.units + units)]
    assert Deposit.objects.get().top_up_id == top_up.pk
    assert (status(top_up), credited(tenant)) == ("review", [])

    token.pay(top_up.units)
    look(chain)
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])
    assert Deposit.objects.in_review().count() == 1


def test_a_wrong_payment_is_told_of_the_nearest_top_up(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    small, large = (ask(tenant, chain, token.payers[0], usd_cents=cents) for cents in (100, 1_000))
    token.pay(9_000_000)
    look(chain)
    deposit = Deposit.objects.get()
    assert (deposit.status, deposit.top_up_id) == ("under", large.pk)
    assert (status(small), status(large)) == ("open", "review")


def test_another_sender_pays_nothing_of_it(tenant: Tenant, chain: Chain, token: Contract) -> None:
    token.pay(50_000_000, to=token.payers[1])
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units, payer=1)
    look(chain)
    assert found() == [("unmatched", top_up.units)]
    assert (status(top_up), credited(tenant)) == ("open", [])


def test_who_names_the_sender_of_another_cannot_claim_the_payment(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    thief = factories.make_tenant("Thief")
    stolen = [ask(thief, chain, token.payers[0]) for _ in range(5)]
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    look(chain)
    assert (credited(tenant), credited(thief)) == ([top_up.units * 1_000], [])
    assert [status(other) for other in stolen] == ["open"] * 5


def test_another_amount_is_nobodys_where_several_organizations_name_its_sender(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    """A wallet that drops the tail pays what is nearest to whoever asked for it most often."""
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


def test_a_second_organization_counts_also_once_it_was_paid(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    ask(factories.make_tenant("Thief"), chain, token.payers[0])
    token.pay(10_000_000)
    look(chain)
    assert found() == [("credited", top_up.units), ("unmatched", 10_000_000)]


def test_a_late_payment_is_nobodys_where_several_organizations_had_its_amount(
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
def test_what_is_asked_for_after_a_payment_does_not_claim_it(
    tenant: Tenant,
    chain: Chain,
    token: Contract,
    monkeypatch: pytest.MonkeyPatch,
    units: int,
    seconds: int,
    finding: str,
) -> None:
    monkeypatch.setattr("billing.topups.models.top_ups.MAX_TAIL", 1)
    token.pay(units)
    mined_at = node_of(chain).confirmed_head().mined_at
    ask(tenant, chain, token.payers[0])
    TopUp.objects.update(created_at=mined_at + timedelta(seconds=seconds))
    look(chain)
    assert found() == [(finding, units)]


def test_other_tokens_and_pretended_events_are_not_payments(
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
def test_what_was_asked_for_before_a_change_of_the_settings_is_still_credited(
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
    later = ask(tenant, changed, token.payers[0])
    old.pay(top_up.units)
    look(changed)
    assert status(top_up) == "seen"
    token.pay(later.units, to=recipient)
    mine(anvil, 1)
    look(changed)
    assert (status(top_up), status(later)) == ("confirmed", "confirmed")
    assert credited(tenant) == [top_up.units * 1_000, later.units * 1_000]


def test_what_nobody_waits_for_any_more_is_not_read(
    tenant: Tenant, token: Contract, front: Front, offer: Offer
) -> None:
    chain = offer(chain_of(token, url=front.url))
    look(chain)
    top_up = ask(tenant, chain, token.payers[0])
    changed = offer(dataclasses.replace(chain, recipient=parse_address(STRANGER)))
    for is_reserved in (True, False):
        TopUp.objects.update(is_reserved=is_reserved)
        token.pay(5)
        look(changed)
    assert found() == [("under", 5)]
    assert Deposit.objects.get().top_up_id == top_up.pk
    to = ["0x" + address[2:].lower().rjust(64, "0") for address in (STRANGER, chain.recipient)]
    assert [wanted["topics"][2] for (wanted,) in front.asked("eth_getLogs")] == [to, to[0]]


def test_two_transfers_of_one_transaction_are_two_payments(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    first, second = ask(tenant, chain, token.payers[0]), ask(tenant, chain, token.payers[0])
    tx_hash = token.pay_twice(first.units, second.units)
    look(chain)
    rows = list(Deposit.objects.order_by("ordinal"))
    assert [(row.tx_hash, row.ordinal) for row in rows] == [(tx_hash, 1), (tx_hash, 3)]
    assert [row.status for row in rows] == ["credited", "credited"]
    assert credited(tenant) == [first.units * 1_000, second.units * 1_000]


def test_a_reverted_transfer_is_no_payment(
    tenant: Tenant, chain: Chain, token: Contract, anvil: Anvil, offer: Offer
) -> None:
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


def test_a_payment_within_the_grace_is_credited(
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
def test_a_payment_beyond_the_grace_waits_for_an_operator(
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


def test_the_last_moment_of_the_grace_is_in_time(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    """The moment of the block counts, not that of its confirmation."""
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    ((payments, cursor),) = node_of(chain).scan(ChainState.objects.get().cursor)
    mined_at = payments[0].mined_at
    TopUp.objects.update(expires_at=mined_at, payable_until=mined_at, created_at=mined_at)
    assert ChainState.objects.get().advance(chain, payments, cursor) is True
    assert watcher.match_received_deposits(chain.chain_id) == 1
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_a_payment_made_before_its_top_up_was_asked_for_is_not_its(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    TopUp.objects.update(created_at=timezone.now() + timedelta(hours=1))
    look(chain)
    assert (found(), credited(tenant)) == ([("unmatched", top_up.units)], [])


def test_a_second_payment_of_the_same_waits_for_an_operator(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    token.pay(top_up.units)
    look(chain)
    assert found() == [("credited", top_up.units), ("over", top_up.units)]
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_an_amount_stays_reserved_until_no_payment_of_it_can_be_in_time(
    tenant: Tenant, chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.topups.models.top_ups.MAX_TAIL", 1)
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
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


def test_nothing_is_released_before_all_that_came_in_is_judged(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(7)
    watcher.read_payments(chain, node_of(chain), ChainState.objects.get())
    after = top_up.payable_until + timedelta(seconds=1)
    assert watcher.release_amounts(chain.chain_id, after) == 0
    watcher.match_received_deposits(chain.chain_id)
    assert watcher.release_amounts(chain.chain_id, after) == 1


def test_a_payment_is_seen_before_it_is_final(
    tenant: Tenant, inference: APIClient, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil)
    mine(anvil, 6)
    chain = offer(chain_of(token, confirmations=4))
    look(chain)
    top_up = ask(tenant, chain, token.payers[0])
    tx_hash = token.pay(top_up.units)
    path = f"/api/v1/credits/crypto/{top_up.pk}"
    progress = []
    for _ in range(5):
        look(chain)
        data = inference.get(path).json()["data"]
        progress.append((data["status"], data["confirmations"], data["transaction_hash"]))
        assert credited(tenant) == ([] if len(progress) < 5 else [top_up.units * 1_000])
        mine(anvil, 1)
    assert progress == [
        ("seen", 1, tx_hash), ("seen", 2, tx_hash), ("seen", 3, tx_hash), ("seen", 4, tx_hash),
        ("confirmed", 5, tx_hash),
    ]  # fmt: skip


def test_a_payment_that_is_taken_back_before_finality_is_not_credited(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil)
    mine(anvil, 6)
    chain = offer(chain_of(token, confirmations=4))
    look(chain)
    top_up = ask(tenant, chain, token.payers[0])
    snapshot = anvil.rpc("evm_snapshot")
    token.pay(top_up.units)
    look(chain)
    assert status(top_up) == "seen"
    anvil.rpc("evm_revert", snapshot)
    mine(anvil, 2)
    look(chain)
    assert (status(top_up), top_up.tx_hash, top_up.confirmations) == ("open", "", 0)
    mine(anvil, 6)
    look(chain)
    assert (found(), credited(tenant)) == ([], [])


def test_a_payment_that_moves_before_finality_is_credited_once(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    """The log's index in the block is another one after the reorganization."""
    token = deploy(anvil)
    mine(anvil, 6)
    chain = offer(chain_of(token, confirmations=4))
    look(chain)
    top_up = ask(tenant, chain, token.payers[0])
    tx_hash = token.pay(top_up.units)
    sent = anvil.rpc("eth_getTransactionByHash", tx_hash)
    look(chain)
    seen_in = TopUp.objects.get().block_number
    anvil.rpc("anvil_reorg", 1, [])
    anvil.rpc("evm_setAutomine", False)
    other = anvil.rpc(
        "eth_sendTransaction",
        {"from": token.payers[1], "to": token.address, "gas": hex(200_000),
         "data": "0x095ea7b3" + "0" * 24 + STRANGER[2:] + "0" * 64},
    )  # fmt: skip
    mine(anvil, 1)
    anvil.rpc(
        "eth_sendTransaction",
        {name: sent[name] for name in ("from", "to", "input", "nonce", "gas", "value")},
    )
    mine(anvil, 1)
    anvil.rpc("evm_setAutomine", True)
    assert anvil.rpc("eth_getTransactionReceipt", other)["status"] == "0x1"
    look(chain)
    assert status(top_up) == "seen"
    assert top_up.block_number is not None
    assert seen_in is not None
    assert top_up.block_number > seen_in
    mine(anvil, 6)
    assert [look(chain), look(chain)] == [1, 0]
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_a_reorganization_after_finality_halts_the_chain_until_an_operator_resumes_it(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil)
    mine(anvil, 6)
    chain = offer(chain_of(token, confirmations=2))
    look(chain)
    begin = ChainState.objects.get()
    first = ask(tenant, chain, token.payers[0])
    sent = anvil.rpc("eth_getTransactionByHash", token.pay(first.units))
    mine(anvil, 2)
    look(chain)
    anvil.rpc("anvil_reorg", 4, [])
    again = {name: sent[name] for name in ("from", "to", "input", "nonce", "gas", "value")}
    anvil.rpc("eth_sendTransaction", again)
    second = ask(tenant, chain, token.payers[0])
    token.pay(second.units)
    mine(anvil, 4)

    assert [look(chain), look(chain)] == [0, 0]
    state = ChainState.objects.get()
    assert state.halted_at is not None
    assert state.halt_reason == (f"Block {state.number} was replaced after its payments were read.")
    assert (status(second), credited(tenant)) == ("open", [first.units * 1_000])

    assert begin.cursor is not None
    block = node_of(chain).block(begin.cursor.number)
    state.resume(Cursor(block.number, block.hash), by="operator test")
    look(chain)
    assert (status(first), status(second)) == ("confirmed", "confirmed")
    # The first one is in the chain again, at another place, and was credited before.
    assert credited(tenant) == [first.units * 1_000, second.units * 1_000]


def test_resuming_skips_no_block_and_needs_a_halt(chain: Chain) -> None:
    state = ChainState.objects.get()
    assert state.cursor is not None
    with pytest.raises(InvalidTransition):
        state.resume(state.cursor, by="operator test")
    assert state.halt(state.cursor, "x") is True
    assert state.halt(state.cursor, "y") is False
    with pytest.raises(InvalidRequest, match=f"at most {state.cursor.number}"):
        state.resume(Cursor(state.cursor.number + 1, "0x" + "0" * 64), by="operator test")
    state.resume(state.cursor, by="operator test")
    state.refresh_from_db()
    assert (state.halted_at, state.halt_reason, state.resumed_by) == (None, "", "operator test")


def test_a_payment_that_a_node_left_out_is_found_when_its_blocks_are_read_again(
    tenant: Tenant, token: Contract, front: Front, offer: Offer
) -> None:
    chain = offer(chain_of(token, url=front.url))
    look(chain)
    begin = ChainState.objects.get().cursor
    assert begin is not None
    first, second = ask(tenant, chain, token.payers[0]), ask(tenant, chain, token.payers[0])
    token.pay(first.units)
    token.pay(second.units)
    front.fault = of("eth_getLogs", lambda logs: logs[:1])
    look(chain)
    assert (status(first), status(second)) == ("confirmed", "open")
    front.fault = lambda calls, answers: answers
    state = ChainState.objects.get()
    state.read_again(begin, by="operator test")
    assert (state.cursor, state.resumed_by) == (begin, "operator test")
    assert [look(chain), look(chain)] == [1, 0]
    assert credited(tenant) == [first.units * 1_000, second.units * 1_000]


def test_reading_again_skips_no_block_and_is_no_resuming(chain: Chain, token: Contract) -> None:
    state, reading = ChainState.objects.get(), ChainState.objects.get()
    assert state.cursor is not None
    with pytest.raises(InvalidRequest, match=f"at most {state.cursor.number}"):
        state.read_again(Cursor(state.cursor.number + 1, "0x" + "0" * 64), by="operator test")
    token.pay(7)
    ((payments, cursor),) = node_of(chain).scan(reading.cursor)
    block = node_of(chain).block(state.cursor.number - 1)
    state.read_again(Cursor(block.number, block.hash), by="operator test")
    # Who reads meanwhile moves nothing.
    assert reading.advance(chain, payments, cursor) is False
    assert state.cursor is not None
    assert state.halt(state.cursor, "x") is True
    with pytest.raises(InvalidTransition):
        state.read_again(state.cursor, by="operator test")
    new = ChainState.objects.create(chain_id=5)
    with pytest.raises(InvalidTransition):
        new.read_again(Cursor(0, "0x" + "0" * 64), by="operator test")


def test_a_node_that_was_away_is_read_on_from_the_cursor(
    tenant: Tenant, token: Contract, front: Front, offer: Offer
) -> None:
    chain = offer(chain_of(token, url=front.url))
    look(chain)
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    gone = offer(chain_of(token, url="http://127.0.0.1:1/v2/node-key"))
    assert look(gone) == 0
    state = ChainState.objects.get()
    assert (state.failures, state.failure) == (1, "The node cannot be called: could not connect.")
    assert state.retry_at is not None
    # Until then it is not asked at all, even though it is there again.
    front.calls.clear()
    assert watcher.watch_chain(offer(chain), node_of(chain)) == 0
    assert front.calls == []
    assert look(chain) == 1
    state.refresh_from_db()
    assert (state.failures, state.failure, state.retry_at) == (0, "", None)
    assert credited(tenant) == [top_up.units * 1_000]


def test_failures_wait_twice_as_long_each_time_and_as_long_as_the_node_wishes(
    chain: Chain,
) -> None:
    state = ChainState.objects.get()
    waits = []
    for _ in range(8):
        before_it = timezone.now()
        state.record_failure("x", None)
        assert state.retry_at is not None
        waits.append(round((state.retry_at - before_it).total_seconds()))
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]
    state.record_failure("x", 1_000.0)
    assert state.retry_at is not None
    assert round((state.retry_at - timezone.now()).total_seconds()) == 1_000
    state.record_success(None)
    state.record_failure("x", 0.5)
    assert round((state.retry_at - timezone.now()).total_seconds()) == 5


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_node_loses_and_doubles_no_credit(
    name: str, tenant: Tenant, token: Contract, front: Front, offer: Offer
) -> None:
    fault, _, message = FAULTS[name]
    chain = offer(chain_of(token, url=front.url))
    look(chain)
    cursor = ChainState.objects.get().cursor
    top_ups = [ask(tenant, chain, token.payers[0]) for _ in range(3)]
    token.pay(top_ups[0].units)
    token.pay_twice(top_ups[1].units, top_ups[2].units)

    front.fault = fault
    assert look(chain) == 0
    state = ChainState.objects.get()
    assert (state.cursor, state.failure, state.halted_at) == (cursor, message, None)
    assert (found(), credited(tenant)) == ([], [])
    assert audit.find_differences() == []

    front.fault = lambda calls, answers: answers
    assert [look(chain), look(chain)] == [3, 0]
    assert credited(tenant) == [top_up.units * 1_000 for top_up in top_ups]


def test_a_node_that_fails_at_any_call_loses_and_doubles_no_credit(
    tenant: Tenant, token: Contract, front: Front, offer: Offer
) -> None:
    chain = offer(chain_of(token, url=front.url))
    look(chain)
    paid = []
    for fails_at in itertools.count():
        top_up = ask(tenant, chain, token.payers[0])
        token.pay(top_up.units)
        paid.append(top_up.units * 1_000)
        left = itertools.count()

        def failing(
            calls: Answers, answers: Answers, left: Any = left, fails_at: int = fails_at
        ) -> Answers | bytes:
            return http_response(b"", "502 Bad Gateway") if next(left) == fails_at else answers

        front.fault = failing
        look(chain)
        failed = ChainState.objects.get().failures
        front.fault = lambda calls, answers: answers
        look(chain)
        assert credited(tenant) == paid
        if not failed:
            break
    # The chain and its head, the logs, the receipt, the block's time; the latest block is no fault.
    assert fails_at == 4


class Killed(BaseException):
    """What nothing catches, as nothing catches a kill."""


@contextmanager
def killed_at(statement: int) -> Iterator[list[str]]:
    """Kills this thread's watcher before its statement of that number."""
    done: list[str] = []

    def run(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if len(done) == statement:
            raise Killed
        done.append(sql)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(run):
        yield done


@pytest.mark.django_db(transaction=True)
def test_a_watcher_killed_at_any_statement_loses_and_doubles_no_credit(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    paid: list[int] = []
    seen: set[tuple[int, int]] = set()
    for statement in itertools.count():
        top_up = ask(tenant, chain, token.payers[0])
        token.pay(top_up.units)
        token.pay(7)
        ChainState.objects.update(retry_at=None)
        try:
            with killed_at(statement):
                watcher.watch_chain(chain, node_of(chain))
            is_killed = False
        except Killed:
            is_killed = True
        seen.add((Deposit.objects.received().count(), len(credited(tenant)) - len(paid)))
        assert audit.find_differences() == []
        look(chain)
        paid.append(top_up.units * 1_000)
        assert credited(tenant) == paid
        assert Deposit.objects.received().count() == 0
        assert Deposit.objects.count() == 2 * len(paid)
        if not is_killed:
            break
    # Stored and none judged, one judged, all judged; and before anything was stored.
    assert seen == {(0, 0), (2, 0), (1, 1), (0, 1)}


@pytest.mark.django_db(transaction=True)
def test_many_watchers_at_once_make_one_credit(
    tenant: Tenant, chain: Chain, token: Contract, together: Callable[..., list[Any]]
) -> None:
    top_ups = [ask(tenant, chain, token.payers[0]) for _ in range(2)]
    for top_up in top_ups:
        token.pay(top_up.units)
    counts = together(*[lambda: watcher.watch_chain(chain, node_of(chain))] * 32)
    assert sum(counts) == 2
    assert sorted(credited(tenant)) == sorted(top_up.units * 1_000 for top_up in top_ups)
    assert ChainState.objects.get().failures == 0


@pytest.mark.django_db(transaction=True)
def test_many_settlements_of_one_deposit_make_one_credit(
    tenant: Tenant, chain: Chain, token: Contract, together: Callable[..., list[Any]]
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    state = ChainState.objects.get()
    assert watcher.read_payments(chain, node_of(chain), state) is True
    pk = Deposit.objects.get().pk
    results = together(*[lambda: matching.match_deposit(Deposit.objects.get(pk=pk))] * 32)
    assert sorted(results) == [False] * 31 + [True]
    assert credited(tenant) == [top_up.units * 1_000]


def test_a_batch_of_another_watcher_is_not_stored_again(chain: Chain, token: Contract) -> None:
    token.pay(7)
    mine_state, other = ChainState.objects.get(), ChainState.objects.get()
    ((payments, cursor),) = node_of(chain).scan(mine_state.cursor)
    assert other.advance(chain, payments, cursor) is True
    assert mine_state.advance(chain, payments, cursor) is False
    assert Deposit.objects.count() == 1


def test_a_long_way_is_read_in_several_rounds(
    chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "FIRST_SPAN", 1)
    monkeypatch.setattr(chain_module, "MAX_SPAN", 1)
    monkeypatch.setattr(watcher, "_ROUND_SECONDS", -1.0)
    for units in (1, 2, 3):
        token.pay(units)
    assert [look(chain) for _ in range(4)] == [1, 1, 1, 0]


def test_only_a_round_that_reached_the_head_is_stamped(
    chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "MAX_SPAN", 1)
    monkeypatch.setattr(watcher, "MAX_SPAN", 1)
    monkeypatch.setattr(watcher, "_ROUND_SECONDS", -1.0)
    before_it = ChainState.objects.get().scanned_at
    for units in (1, 2):
        token.pay(units)
    stamped = []
    for _ in range(3):
        look(chain)
        stamped.append(ChainState.objects.get().scanned_at != before_it)
    assert stamped == [False, False, True]


def test_many_payments_behind_a_limit_are_read_in_several_rounds(
    tenant: Tenant, token: Contract, front: Front, offer: Offer
) -> None:
    """Strangers may pay as much dust as they like; it starves nobody's payment."""
    chain = offer(chain_of(token, url=front.url))
    look(chain)
    for units in range(1, 8):
        token.pay(units)
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    limit = http_response(b"", "429 Too Many Requests")
    rounds = []
    for _ in range(3):
        front.fault = failing_after(3, limit)
        count = look(chain)
        state = ChainState.objects.get()
        rounds.append((count, state.failures))
    # A node that lets something through is asked again soon.
    assert rounds == [(3, 1), (3, 1), (2, 0)]
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_a_round_that_is_over_keeps_the_blocks_that_it_read(
    chain: Chain, token: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_ROUND_SECONDS", -1.0)
    for units in (1, 2, 3):
        token.pay(units)
    assert [look(chain) for _ in range(4)] == [1, 1, 1, 0]


def test_a_node_with_a_small_limit_is_looked_ahead_and_its_limit_is_kept(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil)
    mine(anvil, 40)
    with before(anvil) as front:
        chain = offer(chain_of(token, url=front.url, confirmations=32))
        front.fault = limited_to(10)
        look(chain)
        top_up = ask(tenant, chain, token.payers[0])
        token.pay(top_up.units)
        look(chain)
        state = ChainState.objects.get()
        assert (status(top_up), state.failures, state.latest_number) == (
            "seen", 0, top_up.block_number,
        )  # fmt: skip
        assert state.span == 16
        front.calls.clear()
        look(chain)
        assert ranges(front) == [16, 8, 16, 8, 16, 8, 8]


def test_a_look_ahead_that_is_refused_is_no_failure(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil)
    mine(anvil, 10)
    with before(anvil) as front:
        chain = offer(chain_of(token, url=front.url, confirmations=2))
        look(chain)
        ask(tenant, chain, token.payers[0])
        front.fault = limited_to(0)
        look(chain)
        state = ChainState.objects.get()
        assert (state.failures, state.failure, state.retry_at) == (0, "", None)


def test_a_lagging_node_takes_no_payment_out_of_sight(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token = deploy(anvil)
    mine(anvil, 10)
    with before(anvil) as front:
        chain = offer(chain_of(token, url=front.url, confirmations=6))
        look(chain)
        top_up = ask(tenant, chain, token.payers[0])
        token.pay(top_up.units)
        look(chain)

        def lagging(calls: Answers, answers: Answers) -> Answers:
            if calls[0]["method"] == "eth_getLogs":
                answers[0]["result"], answers[1]["result"] = [], None
            return answers

        span = ChainState.objects.get().span
        front.fault = lagging
        look(chain)
        state = ChainState.objects.get()
        assert (status(top_up), state.failures, state.span) == ("seen", 0, span)


def test_a_chain_with_nothing_to_pay_is_not_looked_ahead(
    tenant: Tenant, token: Contract, front: Front, offer: Offer
) -> None:
    chain = offer(chain_of(token, url=front.url))
    look(chain)
    token.pay(5)
    front.calls.clear()
    look(chain)
    assert [wanted["toBlock"] for (wanted,) in front.asked("eth_getLogs")] == [
        hex(ChainState.objects.get().number or 0)
    ]


def test_the_duty_watches_each_chain_in_its_turn(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    assert [watcher.watch_due_chains(), watcher.watch_due_chains()] == [1, 0]
    assert Lease.objects.filter(name=f"watch_chain_{chain.chain_id}").count() == 1
    assert credited(tenant) == [top_up.units * 1_000]


def test_a_fault_of_one_chain_ends_no_other(
    tenant: Tenant, chain: Chain, token: Contract, offer: Offer, settings: Any
) -> None:
    # It stands for whatever nobody foresaw.
    broken = dataclasses.replace(chain, chain_id=5, rpc_url=cast(str, None))
    settings.CHAINS = {5: broken, **settings.CHAINS}
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    assert watcher.watch_due_chains() == 1
    assert credited(tenant) == [top_up.units * 1_000]
    state = ChainState.objects.get(chain_id=5)
    assert (state.failures, state.failure) == (
        1,
        "The round ended in an unexpected error; see the log.",
    )


def test_a_deposit_that_cannot_be_judged_ends_no_other(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    token.pay(7)
    look(chain)
    facts = {
        field.attname: getattr(Deposit.objects.get(), field.attname)
        for field in Deposit._meta.concrete_fields
        if field.attname not in ("id", "status", "finding")
    }
    end = datetime.max.replace(tzinfo=UTC)
    Deposit.objects.create(**{**facts, "ordinal": 99, "mined_at": end})
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    assert look(chain) == 1
    assert [name for name, _ in found()] == ["unmatched", "received", "credited"]
    assert credited(tenant) == [top_up.units * 1_000]


def test_a_worker_credits_a_payment(tenant: Tenant, chain: Chain, token: Contract) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    call_command("work", once=True)
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


@pytest.mark.django_db(transaction=True)
def test_a_silent_node_keeps_no_other_duty_of_a_worker_waiting(
    tenant: Tenant, token: Contract, front: Front, offer: Offer
) -> None:
    chain = offer(chain_of(token, url=front.url))
    look(chain)
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    asked, answers_now = threading.Event(), threading.Event()
    others: list[str] = []

    def silent(calls: Answers, answers: Answers) -> Answers:
        asked.set()
        answers_now.wait(15)
        return answers

    def end_the_worker() -> None:
        asked.wait(15)
        try:
            for _ in range(100):
                others[:] = Lease.objects.order_by("name").values_list("name", flat=True)
                if "clear_sessions" in others:
                    break
                time.sleep(0.1)
            answers_now.set()
            for _ in range(100):
                if TopUp.objects.get().status == "confirmed":
                    break
                time.sleep(0.1)
        finally:
            connection.close()
            os.kill(os.getpid(), signal.SIGTERM)

    front.fault = silent
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    ender = threading.Thread(target=end_the_worker)
    ender.start()
    try:
        call_command("work")
    finally:
        ender.join()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert {"sweep_generations", "clear_sessions", "watch_chains"} <= set(others)
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_a_deposit_is_kept_as_it_was_stored(tenant: Tenant, chain: Chain, token: Contract) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
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


def test_an_operator_credits_a_deposit_once(tenant: Tenant, chain: Chain, token: Contract) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units - 1)
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


def test_an_operator_credits_an_unmatched_deposit_to_anybody(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    token.pay(3_000_000)
    look(chain)
    matching.credit(Deposit.objects.get(), tenant.organization.pk, by="operator test")
    assert credited(tenant) == [3_000_000_000]
    assert found() == [("credited", 3_000_000)]


@pytest.mark.parametrize(("seconds", "after"), [(-1, "expired"), (60, "open")])
def test_a_dismissed_deposit_closes_the_review_of_its_top_up(
    tenant: Tenant, chain: Chain, token: Contract, seconds: int, after: str
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units - 1)
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


def test_a_deposit_worth_nothing_or_too_much_is_not_credited(
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
def test_operators_at_once_resolve_a_deposit_once(
    tenant: Tenant, chain: Chain, token: Contract, together: Callable[..., list[Any]]
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


def test_metrics_tell_of_what_waits_for_an_operator(
    tenant: Tenant, anonymous: APIClient, chain: Chain, token: Contract
) -> None:
    token.pay(7)
    token.pay(8)
    look(chain)
    state = ChainState.objects.get()
    label = f'{{chain_id="{chain.chain_id}"}}'

    def told() -> list[str]:
        text = anonymous.get("/metrics").content.decode()
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


def test_an_error_of_the_look_ahead_is_a_failure_like_any_other(
    tenant: Tenant, chain: Chain, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    token.pay(top_up.units)
    node = node_of(chain)

    def away(cursor: Cursor) -> Any:
        raise ChainUnavailable("The node is away.")

    node.read_unconfirmed = away  # type: ignore[method-assign]
    ask(tenant, chain, token.payers[0])
    assert watcher.watch_chain(chain, node) == 1
    assert ChainState.objects.get().failure == "The node is away."
    assert credited(tenant) == [top_up.units * 1_000]


def test_two_chains_do_not_take_each_others_payments(
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
