"""Tests how payments are read from real nodes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from eth_utils import keccak

from billing.topups import node as chain_module
from billing.topups.node import TRANSFER, ChainPayment, Cursor, Node, Reorganized
from config.egress.addresses import EgressPolicy
from tests.support.chains.node_faults import STRANGER, mine, watching, watching_anvil
from tests.support.chains.nodes import RECIPIENT, Anvil, Contract, EthTester, chain_of, deploy


def test_topic_is_the_hash_of_the_transfer_event() -> None:
    assert "0x" + keccak(text="Transfer(address,address,uint256)").hex() == TRANSFER


def test_scan_returns_all_fields_of_a_payment(evm: EthTester, token: Contract) -> None:
    watcher = watching(token)
    tx_hash = token.pay(10_001_234)
    block = evm.rpc("eth_getBlockByNumber", "latest", False)
    (deposit,) = watcher.look()
    assert deposit == ChainPayment(
        chain_id=watcher.node.chain.chain_id,
        tx_hash=tx_hash,
        ordinal=0,
        block_number=int(block["number"], 16),
        block_hash=block["hash"],
        mined_at=datetime.fromtimestamp(int(block["timestamp"], 16), UTC),
        token=token.address,
        sender=token.payers[0],
        recipient=RECIPIENT,
        units=10_001_234,
    )
    assert watcher.cursor == Cursor(deposit.block_number, deposit.block_hash)
    assert watcher.look() == []


def test_scan_without_a_cursor_starts_at_the_confirmed_head(
    evm: EthTester, token: Contract
) -> None:
    token.pay(5)
    block = evm.rpc("eth_getBlockByNumber", "latest", False)
    node = Node(chain_of(token), EgressPolicy())
    assert list(node.scan(None)) == [([], Cursor(int(block["number"], 16), block["hash"]))]


def test_two_payments_in_one_transaction_have_different_ordinals(token: Contract) -> None:
    watcher = watching(token)
    tx_hash = token.pay_twice(7, 7)
    found = [(deposit.tx_hash, deposit.ordinal, deposit.units) for deposit in watcher.look()]
    assert found == [(tx_hash, 1, 7), (tx_hash, 3, 7)]


def test_find_payment_returns_what_a_scan_has_read(token: Contract) -> None:
    watcher = watching(token)
    tx_hash = token.pay_twice(6, 7)
    payments, cursor = watcher.look(), watcher.cursor
    assert cursor is not None
    found = [watcher.node.find_payment(tx_hash, place, cursor) for place in range(5)]
    assert found == [None, payments[0], None, payments[1], None]
    assert watcher.node.find_payment("0x" + "1" * 64, 1, cursor) is None
    with pytest.raises(Reorganized):
        watcher.node.find_payment(tx_hash, 1, Cursor(cursor.number, "0x" + "1" * 64))


def test_payments_in_one_block_are_distinguished_by_transaction(anvil: Anvil) -> None:
    token, watcher = watching_anvil(anvil)
    anvil.rpc("evm_setAutomine", False)
    sent = [token.pay(7), token.pay(7), token.pay(8)]
    mine(anvil, 3)
    deposits = watcher.look()
    assert [(deposit.tx_hash, deposit.ordinal, deposit.units) for deposit in deposits] == [
        (sent[0], 0, 7),
        (sent[1], 0, 7),
        (sent[2], 0, 8),
    ]
    assert len({deposit.block_hash for deposit in deposits}) == 1


def test_scan_ignores_events_that_are_not_payments(evm: EthTester, token: Contract) -> None:
    watcher = watching(token)
    other = deploy(evm)
    other.pay(1)
    other.pretend(token.payers[0], 2)
    token.pay(3, to=STRANGER)
    token.pay(0)
    token.send("approve(address,uint256)", RECIPIENT, 4)
    evm.rpc("eth_sendTransaction", {"from": token.payers[0], "to": RECIPIENT, "value": 5})
    token.pay(6)
    watcher.look()
    assert watcher.units() == [6]


def test_sender_is_the_owner_of_the_tokens_rather_than_the_spender(token: Contract) -> None:
    watcher = watching(token)
    token.send("approve(address,uint256)", token.payers[1], 9)
    token.send("transferFrom(address,address,uint256)", token.payers[0], RECIPIENT, 9, payer=1)
    (deposit,) = watcher.look()
    assert (deposit.sender, deposit.units) == (token.payers[0], 9)


def test_an_interrupted_scan_continues_from_its_cursor(
    monkeypatch: pytest.MonkeyPatch, token: Contract
) -> None:
    monkeypatch.setattr(chain_module, "FIRST_SPAN", 1)
    watcher = watching(token)
    token.pay(1)
    token.pay(2)
    token.pay(3)
    assert watcher.cursor is not None
    deposits, cursor = next(watcher.node.scan(watcher.cursor))
    assert [deposit.units for deposit in deposits] == [1]
    assert cursor.number == watcher.cursor.number + 1
    watcher.cursor = cursor
    watcher.look()
    assert watcher.units() == [2, 3]
