"""Tests payments before finality, reorganizations and the rereading of blocks."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from rest_framework.test import APIClient

from billing.models import ChainState, Deposit, TopUp
from billing.topups import node as chain_module
from billing.topups import watcher
from billing.topups.chains import Chain, parse_address
from billing.topups.node import Cursor
from config.api.errors import InvalidRequest, InvalidTransition
from config.clocks.clock import clock
from config.events.outbox import Event
from tests.support.chains.node_faults import (
    STRANGER,
    logs,
    mine,
    of,
    receipt_logs,
    send_again,
)
from tests.support.chains.nodes import (
    Answers,
    Anvil,
    Contract,
    Front,
    before,
    chain_of,
    deploy,
)
from tests.support.chains.payments import ask, look, node_of
from tests.support.chains.watching import Offer, ask_and_pay, credited, found, status, watch_anvil
from tests.support.factories import Tenant


def test_a_payment_shows_as_seen_before_it_is_final(
    tenant: Tenant, inference: APIClient, anvil: Anvil, offer: Offer
) -> None:
    token, chain = watch_anvil(anvil, offer, blocks=6, confirmations=4)
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


def test_a_payment_that_is_reverted_before_finality_is_not_credited(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token, chain = watch_anvil(anvil, offer, blocks=6, confirmations=4)
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


@pytest.mark.parametrize(
    ("is_replaced", "ends", "deposits"), [(True, "expired", []), (False, "review", ["late"])]
)
def test_a_late_payment_is_watched_after_its_amount_was_freed(
    tenant: Tenant, token: Contract, offer: Offer, is_replaced: bool, ends: str, deposits: list[str]
) -> None:
    """The settings name another recipient meanwhile."""
    mine_empty(token, 3)
    chain = offer(chain_of(token, confirmations=2))
    look(chain)
    top_up = ask(tenant, chain, token.payers[0])
    snapshot = token.node.rpc("evm_snapshot")
    token.pay(top_up.units)
    changed = offer(replace(chain, recipient=parse_address(STRANGER)))
    look(changed)
    assert (status(top_up), top_up.is_reserved) == ("seen", True)
    past = clock.now() - timedelta(days=1)
    TopUp.objects.update(expires_at=past, payable_until=past)
    for _ in range(2):
        look(changed)
        assert (status(top_up), top_up.is_reserved) == ("seen", False)
    if is_replaced:
        token.node.rpc("evm_revert", snapshot)
    mine_empty(token, 3)
    look(changed)
    watcher.expire_due_top_ups()
    assert (status(top_up), top_up.tx_hash == "") == (ends, is_replaced)
    assert found() == [(name, top_up.units) for name in deposits]
    assert credited(tenant) == []


def test_a_payment_that_moves_before_finality_is_credited_once(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    """Also changes the index of the log in its block."""
    token, chain = watch_anvil(anvil, offer, blocks=6, confirmations=4)
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
    send_again(anvil, sent)
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


def test_a_reorganization_after_finality_halts_the_chain_until_it_is_resumed(
    tenant: Tenant, anvil: Anvil, offer: Offer
) -> None:
    token, chain = watch_anvil(anvil, offer, blocks=6, confirmations=2)
    begin = ChainState.objects.get()
    first = ask(tenant, chain, token.payers[0])
    sent = anvil.rpc("eth_getTransactionByHash", token.pay(first.units))
    mine(anvil, 2)
    look(chain)
    anvil.rpc("anvil_reorg", 4, [])
    send_again(anvil, sent)
    second = ask_and_pay(tenant, chain, token)
    mine(anvil, 4)

    assert [look(chain), look(chain)] == [0, 0]
    state = ChainState.objects.get()
    assert state.halted_at is not None
    assert state.halt_reason == (f"Block {state.number} was replaced after its payments were read.")
    assert (status(second), credited(tenant)) == ("open", [first.units * 1_000])

    assert begin.cursor is not None
    block = node_of(chain).read_block(begin.cursor.number)
    state.resume(Cursor(block.number, block.hash), by="operator test")
    look(chain)
    assert (status(first), status(second)) == ("confirmed", "confirmed")
    # The first payment was credited before and is now in another block.
    assert credited(tenant) == [first.units * 1_000, second.units * 1_000]


def test_a_halted_chain_credits_no_stored_payment_until_its_block_is_read_again(
    tenant: Tenant, anvil: Anvil, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain changes within a round, after the round has stored a batch."""
    monkeypatch.setattr(chain_module, "MAX_SPAN", 4)
    monkeypatch.setattr(watcher, "MAX_SPAN", 4)
    token = deploy(anvil)
    mine(anvil, 6)
    with before(anvil) as front:
        chain = offer(chain_of(token, url=front.url, confirmations=2))
        look(chain)
        begin = ChainState.objects.get().cursor
        assert begin is not None
        moved, gone = (ask(tenant, chain, token.payers[0]) for _ in range(2))
        sent = anvil.rpc("eth_getTransactionByHash", token.pay(moved.units))
        token.pay(gone.units)
        mine(anvil, 4)
        receipts = itertools.count(1)

        def replaced(calls: Answers, answers: Answers) -> Answers:
            if calls[0]["method"] == "eth_getTransactionReceipt" and next(receipts) == 2:
                anvil.rpc("anvil_reorg", 6, [])
                send_again(anvil, sent)
            return answers

        front.fault = replaced
        assert [look(chain), look(chain)] == [0, 0]
        state = ChainState.objects.get()
        assert state.halt_reason == (
            f"Block {state.number} was replaced after its payments were read."
        )
        assert found() == [("received", moved.units), ("received", gone.units)]
        assert (status(moved), status(gone), credited(tenant)) == ("open", "open", [])

        front.fault = lambda calls, answers: answers
        mine(anvil, 2)
        block = node_of(chain).read_block(begin.number)
        assert Cursor(block.number, block.hash) == begin
        state.resume(begin, by="operator test")
        monkeypatch.setattr(chain_module, "MAX_SPAN", 100)
        monkeypatch.setattr(watcher, "MAX_SPAN", 100)
        ChainState.objects.update(span=100)
        assert [look(chain), look(chain)] == [1, 0]
        assert found() == [("credited", moved.units), ("unmatched", gone.units)]
        assert (status(moved), status(gone)) == ("confirmed", "open")
        assert credited(tenant) == [moved.units * 1_000]
        assert Deposit.objects.get(status="unmatched").top_up is None
        events = Event.objects.filter(kind="deposit.in_review").values_list("data__id", flat=True)
        assert list(events) == [str(Deposit.objects.get(status="unmatched").pk)]


def mine_empty(token: Contract, blocks: int) -> None:
    for _ in range(blocks):
        token.node.rpc("evm_mine")


def store(chain: Chain) -> ChainState:
    """Reads a chain to its head, and halts it before anything is matched."""
    state = ChainState.objects.get()
    assert watcher.read_payments(chain, node_of(chain), state) is True
    assert state.cursor is not None
    assert state.halt(state.cursor, "replaced") is True
    return state


@pytest.mark.parametrize(("seconds", "counts"), [(20.0, [2]), (-1.0, [0, 0, 0, 0, 1, 1, 0])])
def test_a_payment_that_moved_to_another_batch_is_credited_when_its_chain_is_resumed(
    tenant: Tenant,
    chain: Chain,
    token: Contract,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    counts: list[int],
) -> None:
    """Each round reads one batch where there is no time for a second one."""
    token.pay(10**9, to=token.payers[1])
    look(chain)
    begin, snapshot = ChainState.objects.get().cursor, token.node.rpc("evm_snapshot")
    assert begin is not None
    later, gone = (ask(tenant, chain, token.payers[0]) for _ in range(2))
    earlier = ask(tenant, chain, token.payers[1])
    sent = [token.pay(later.units)]
    mine_empty(token, 3)
    sent.append(token.pay(earlier.units, payer=1))
    token.pay(gone.units)
    state = store(chain)
    stored = [("received", each.units) for each in (later, earlier, gone)]
    assert found() == stored

    token.node.rpc("evm_revert", snapshot)
    moved = [token.pay(earlier.units, payer=1)]
    mine_empty(token, 4)
    assert [token.pay(later.units), *moved] == sent
    mine_empty(token, 1)
    state.resume(begin, by="operator test")
    for module in (chain_module, watcher):
        monkeypatch.setattr(module, "MAX_SPAN", 2)
    monkeypatch.setattr(chain_module, "FIRST_SPAN", 2)
    monkeypatch.setattr(watcher, "_ROUND_SECONDS", seconds)
    for place, count in enumerate(counts):
        assert look(chain) == count
        assert place > 3 or count or found() == stored
    assert look(chain) == 0
    assert found() == [
        ("credited", later.units), ("credited", earlier.units), ("unmatched", gone.units)
    ]  # fmt: skip
    assert [status(each) for each in (later, earlier, gone)] == ["confirmed", "confirmed", "open"]
    assert credited(tenant) == [later.units * 1_000, earlier.units * 1_000]


def test_a_stored_payment_whose_new_block_is_not_final_waits(
    tenant: Tenant, token: Contract, offer: Offer
) -> None:
    mine_empty(token, 3)
    chain = offer(chain_of(token, confirmations=2))
    look(chain)
    begin, snapshot = ChainState.objects.get().cursor, token.node.rpc("evm_snapshot")
    assert begin is not None
    top_up = ask(tenant, chain, token.payers[0])
    tx_hash = token.pay(top_up.units)
    mine_empty(token, 2)
    state = store(chain)
    token.node.rpc("evm_revert", snapshot)
    mine_empty(token, 3)
    assert token.pay(top_up.units) == tx_hash
    state.resume(begin, by="operator test")
    assert look(chain) == 0
    assert (found(), status(top_up)) == ([("received", top_up.units)], "seen")
    mine_empty(token, 2)
    assert [look(chain), look(chain)] == [1, 0]
    assert (status(top_up), credited(tenant)) == ("confirmed", [top_up.units * 1_000])


def test_a_stored_payment_that_is_another_one_after_a_resume_goes_to_review(
    tenant: Tenant, token: Contract, front: Front, fronted: Chain
) -> None:
    begin = ChainState.objects.get().cursor
    assert begin is not None
    top_up = ask_and_pay(tenant, fronted, token)
    store(fronted).resume(begin, by="operator test")
    less = {"data": f"0x{top_up.units - 1:064x}"}

    def changed(calls: Answers, answers: Answers) -> Answers | bytes:
        answers = cast(Answers, logs(**less)(calls, answers))
        return receipt_logs(**less)(calls, answers)

    front.fault = changed
    assert [look(fronted), look(fronted)] == [0, 0]
    assert (found(), credited(tenant)) == ([("unmatched", top_up.units)], [])


def test_resume_refuses_to_skip_a_block_or_to_start_without_a_halt(chain: Chain) -> None:
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


def test_read_again_finds_a_payment_that_the_node_left_out(
    tenant: Tenant, token: Contract, front: Front, fronted: Chain
) -> None:
    begin = ChainState.objects.get().cursor
    assert begin is not None
    first, second = ask(tenant, fronted, token.payers[0]), ask(tenant, fronted, token.payers[0])
    token.pay(first.units)
    token.pay(second.units)
    front.fault = of("eth_getLogs", lambda logs: logs[:1])
    look(fronted)
    assert (status(first), status(second)) == ("confirmed", "open")
    front.fault = lambda calls, answers: answers
    state = ChainState.objects.get()
    state.read_again(begin, by="operator test")
    assert (state.cursor, state.resumed_by) == (begin, "operator test")
    assert [look(fronted), look(fronted)] == [1, 0]
    assert credited(tenant) == [first.units * 1_000, second.units * 1_000]


def test_read_again_refuses_to_skip_a_block_or_to_resume_a_halted_chain(
    chain: Chain, token: Contract
) -> None:
    state, reading = ChainState.objects.get(), ChainState.objects.get()
    assert state.cursor is not None
    with pytest.raises(InvalidRequest, match=f"at most {state.cursor.number}"):
        state.read_again(Cursor(state.cursor.number + 1, "0x" + "0" * 64), by="operator test")
    token.pay(7)
    ((payments, cursor),) = node_of(chain).scan(reading.cursor)
    block = node_of(chain).read_block(state.cursor.number - 1)
    state.read_again(Cursor(block.number, block.hash), by="operator test")
    # A reader that started before ``read_again`` stores nothing.
    assert Deposit.objects.store_batch(reading, chain, payments, cursor) is False
    assert state.cursor is not None
    assert state.halt(state.cursor, "x") is True
    with pytest.raises(InvalidTransition):
        state.read_again(state.cursor, by="operator test")
    new = ChainState.objects.create(chain_id=5)
    with pytest.raises(InvalidTransition):
        new.read_again(Cursor(0, "0x" + "0" * 64), by="operator test")
