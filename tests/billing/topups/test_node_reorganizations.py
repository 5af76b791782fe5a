"""Tests confirmations and reorganizations on Anvil."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from billing.topups.node import Cursor, Reorganized
from billing.topups.rpc import ChainContradiction
from tests.support.chains.node_faults import STRANGER, mine, send_again, watching, watching_anvil
from tests.support.chains.nodes import RECIPIENT, Anvil, deploy


def test_scan_reads_the_same_fields_from_anvil(anvil: Anvil) -> None:
    token, watcher = watching_anvil(anvil)
    anvil.rpc("evm_setAutomine", False)
    other, twice = token.pay(5, to=STRANGER), token.pay_twice(6, 7)
    mine(anvil, 3)
    anvil.rpc("evm_setAutomine", True)
    receipt = anvil.rpc("eth_getTransactionReceipt", twice)
    assert anvil.rpc("eth_getTransactionReceipt", other)["blockHash"] == receipt["blockHash"]
    block = anvil.rpc("eth_getBlockByHash", receipt["blockHash"], False)
    deposits = watcher.look()
    assert [(found.tx_hash, found.ordinal, found.units) for found in deposits] == [
        (twice, 1, 6),
        (twice, 3, 7),
    ]
    # The block has one earlier log, of another transaction.
    assert [int(log["logIndex"], 16) for log in receipt["logs"]] == [1, 2, 3, 4]
    assert {(found.chain_id, found.block_hash, found.mined_at) for found in deposits} == {
        (8453, block["hash"], datetime.fromtimestamp(int(block["timestamp"], 16), UTC))
    }


@pytest.mark.parametrize(
    ("confirmations", "depth"), [("safe", 1), ("finalized", 2), (1, 1), (7, 7)]
)
def test_scan_returns_a_payment_when_it_is_confirmed(
    anvil: Anvil, confirmations: Any, depth: int
) -> None:
    token, watcher = watching_anvil(anvil, depth, confirmations=confirmations)
    token.pay(5)
    for _ in range(depth - 1):
        mine(anvil, 1)
        assert watcher.look() == []
    mine(anvil, 1)
    assert [deposit.units for deposit in watcher.look()] == [5]


def test_cursor_starts_at_block_zero_when_the_chain_is_shorter_than_its_confirmations(
    anvil: Anvil,
) -> None:
    token = deploy(anvil)
    assert watching(token, confirmations=50).cursor == Cursor(
        0, anvil.rpc("eth_getBlockByNumber", "0x0", False)["hash"]
    )


def test_a_payment_that_moves_before_finality_is_read_once(anvil: Anvil) -> None:
    token, watcher = watching_anvil(anvil, 6, confirmations=4)
    tx_hash = token.pay(5)
    sent = anvil.rpc("eth_getTransactionByHash", tx_hash)
    mine(anvil, 2)
    assert watcher.look() == []
    anvil.rpc("anvil_reorg", 3, [])
    assert anvil.rpc("eth_getTransactionReceipt", tx_hash) is None
    assert watcher.look() == []
    send_again(anvil, sent)
    mine(anvil, 4)
    (deposit,) = watcher.look()
    assert (deposit.units, deposit.ordinal) == (5, 0)
    assert deposit.block_hash != sent["blockHash"]
    assert watcher.look() == []


def test_scan_ignores_a_payment_that_is_reverted_before_finality(anvil: Anvil) -> None:
    token, watcher = watching_anvil(anvil, 6)
    snapshot = anvil.rpc("evm_snapshot")
    token.pay(5)
    assert watcher.look() == []
    anvil.rpc("evm_revert", snapshot)
    token.pay(6)
    mine(anvil, 3)
    assert [deposit.units for deposit in watcher.look()] == [6]


def test_scan_raises_reorganized_after_a_confirmed_payment_is_replaced(anvil: Anvil) -> None:
    token, watcher = watching_anvil(anvil, 6, confirmations=2)
    token.pay(5)
    mine(anvil, 2)
    assert [deposit.units for deposit in watcher.look()] == [5]
    seen = watcher.cursor
    anvil.rpc("anvil_reorg", 4, [])
    for _ in range(2):
        with pytest.raises(Reorganized):
            watcher.look()
        mine(anvil, 3)
    assert (watcher.units(), watcher.cursor) == ([5], seen)


def test_scan_refuses_a_node_whose_chain_is_shorter_than_the_cursor(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 6)
    snapshot = anvil.rpc("evm_snapshot")
    watcher = watching(token, confirmations=1)
    token.pay(5)
    mine(anvil, 1)
    watcher.look()
    anvil.rpc("evm_revert", snapshot)
    with pytest.raises(
        ChainContradiction, match=r"^The node's confirmed head moved back behind a block"
    ):
        watcher.look()
    assert watcher.units() == [5]


def test_scan_reads_all_payments_among_many_transfers_to_others(anvil: Anvil) -> None:
    token, watcher = watching_anvil(anvil)
    anvil.rpc("evm_setAutomine", False)
    for place in range(60):
        token.pay(place + 1, to=RECIPIENT if place % 3 else STRANGER)
    mine(anvil, 3)
    anvil.rpc("evm_setAutomine", True)
    watcher.look()
    assert sorted(watcher.units()) == [place + 1 for place in range(60) if place % 3]
    assert len({(found.tx_hash, found.ordinal) for found in watcher.deposits}) == 40
