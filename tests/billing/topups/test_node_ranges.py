"""Tests how a long range of blocks is split into parts that a node accepts."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from billing.topups import node as chain_module
from billing.topups import rpc
from billing.topups.node import Cursor, Node, Reorganized
from billing.topups.rpc import ChainError, ChainUnavailable
from config.egress.addresses import EgressPolicy
from tests.support.chains.node_faults import (
    HTML,
    asks_logs,
    failing_after,
    limited_to,
    mine,
    ranges,
    watching,
    watching_anvil,
)
from tests.support.chains.nodes import (
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

LATEST = ("eth_getBlockByNumber", "latest", False)


def test_node_limits_its_calls_per_second(
    token: Contract, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    slept = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        slept.append(round(seconds, 6))

    monkeypatch.setattr(rpc, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    node = Node(chain_of(token, url=front.url), EgressPolicy(), calls_per_second=4)
    ((_, cursor),) = node.scan(None)  # three calls in one batch
    token.pay(5)
    ((deposits, _),) = node.scan(cursor)  # batches of three, three and two calls
    assert [deposit.units for deposit in deposits] == [5]
    assert len(front.calls) == 11
    assert slept == [0.75, 0.75, 0.75]
    now += 100
    node.read_block(1)
    assert slept == [0.75, 0.75, 0.75]


def test_scan_splits_a_batch_with_too_many_transactions(
    token: Contract, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "MAX_TRANSACTIONS", 2)
    watcher = watching(token, front)
    for units in range(1, 8):
        token.pay(units)
    assert watcher.cursor is not None
    batches = list(watcher.node.scan(watcher.cursor))
    assert [[deposit.units for deposit in deposits] for deposits, _ in batches] == [
        [1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]


def test_scan_does_not_split_one_block_with_many_transactions(
    anvil: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "MAX_TRANSACTIONS", 2)
    token, watcher = watching_anvil(anvil)
    anvil.rpc("evm_setAutomine", False)
    for units in (1, 2, 3):
        token.pay(units)
    mine(anvil, 3)
    watcher.look()
    assert watcher.units() == [1, 2, 3]


def test_scan_raises_reorganized_when_the_block_of_the_cursor_was_replaced(
    evm: EthTester, token: Contract
) -> None:
    watcher = watching(token)
    snapshot = evm.rpc("evm_snapshot")
    token.pay(5)
    watcher.look()
    evm.rpc("evm_revert", snapshot)
    token.pay(6)
    seen = watcher.cursor
    assert seen is not None
    for _ in range(2):
        with pytest.raises(Reorganized) as caught:
            watcher.look()
        assert str(caught.value) == (
            f"Block {seen.number} was replaced after its payments were read."
        )
        evm.rpc("evm_mine")  # the second pass reads a longer chain
    assert (watcher.units(), watcher.cursor) == ([5], seen)


def test_scan_doubles_its_range_up_to_the_maximum(
    anvil: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "FIRST_SPAN", 20)
    monkeypatch.setattr(chain_module, "MAX_SPAN", 100)
    token = deploy(anvil)
    with before(anvil) as front:
        watcher = watching(token, front, confirmations=2)
        mine(anvil, 50)
        token.pay(1)
        mine(anvil, 300)
        token.pay(2)
        mine(anvil, 2)
        assert [deposit.units for deposit in watcher.look()] == [1, 2]
        assert ranges(front) == [20, 40, 80, 100, 100, 13]


REFUSALS: dict[str, Callable[[Answers], Answers | bytes]] = {
    "error": lambda answers: [
        {"id": answer["id"], "error": {"code": -32005, "message": "limit"}} for answer in answers
    ],
    "400": lambda answers: http_response(b"{}", "400 Bad Request"),
    "413": lambda answers: http_response(b"", "413 Content Too Large"),
    "504": lambda answers: http_response(HTML, "504 Gateway Timeout"),
    "one error for all": lambda answers: http_response(
        b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32603}}'
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_scan_halves_a_refused_range(anvil: Anvil, refusal: str) -> None:
    def limited(calls: Answers, answers: Answers) -> Answers | bytes:
        if asks_logs(calls):
            wanted = calls[1]["params"][0]
            if int(wanted["toBlock"], 16) - int(wanted["fromBlock"], 16) >= 60:
                return REFUSALS[refusal](answers)
        return answers

    token = deploy(anvil)
    with before(anvil) as front:
        watcher = watching(token, front, confirmations=2)
        token.pay(1)
        mine(anvil, 120)
        token.pay(2)
        mine(anvil, 2)
        front.fault = limited
        assert [deposit.units for deposit in watcher.look()] == [1, 2]
        # Each success doubles the next range.
        assert ranges(front) == [123, 61, 30, 60, 33]


@pytest.mark.parametrize(
    "response",
    [
        http_response(b"", "429 Too Many Requests", "Retry-After: 7\r\n"),
        http_response(b"", "502 Bad Gateway"),
        http_response(HTML),
        http_response(b"[]"),
    ],
)
def test_scan_keeps_complete_blocks_when_the_next_block_fails(
    evm: EthTester, token: Contract, front: Front, response: bytes
) -> None:
    watcher = watching(token, front)
    for units in (1, 2, 3):
        token.pay_twice(units, units + 10)
    second = evm.rpc("eth_getBlockByNumber", hex(int(evm.rpc(*LATEST)["number"], 16) - 1), False)
    front.fault = failing_after(2, response)
    with pytest.raises(ChainError):
        watcher.look()
    assert watcher.units() == [1, 11, 2, 12]
    assert watcher.cursor == Cursor(int(second["number"], 16), second["hash"])
    # The third block is never read in part.
    with pytest.raises(ChainError):
        watcher.look()
    assert watcher.units() == [1, 11, 2, 12]
    front.fault = lambda calls, answers: answers
    watcher.look()
    assert watcher.units() == [1, 11, 2, 12, 3, 13]


def test_scan_does_not_keep_an_incomplete_block(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 2)
    with before(anvil) as front:
        watcher = watching(token, front)
        token.pay(1)
        anvil.rpc("evm_setAutomine", False)
        for units in (2, 3):
            token.pay(units)
        mine(anvil, 3)
        front.fault = failing_after(2, http_response(b"", "429 Too Many Requests"))
        with pytest.raises(ChainUnavailable):
            watcher.look()
        assert watcher.units() == [1]
        front.fault = lambda calls, answers: answers
        watcher.look()
        assert watcher.units() == [1, 2, 3]


def test_scan_ends_a_batch_after_one_block_when_its_time_is_over(token: Contract) -> None:
    watcher = watching(token)
    for units in (1, 2, 3):
        token.pay(units)
    assert watcher.cursor is not None
    batches = list(watcher.node.scan(watcher.cursor, until=0.0))
    assert [[deposit.units for deposit in deposits] for deposits, _ in batches] == [[1], [2], [3]]
    assert [cursor.number - watcher.cursor.number for _, cursor in batches] == [1, 2, 3]


def test_read_unconfirmed_halves_a_refused_range(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 40)
    with before(anvil) as front:
        watcher = watching(token, front, confirmations=40)
        token.pay(1)
        mine(anvil, 20)
        token.pay(2)
        front.fault = limited_to(10)
        assert watcher.cursor is not None
        latest = int(anvil.rpc("eth_blockNumber"), 16)
        payments, last = watcher.node.read_unconfirmed(watcher.cursor, latest)
        assert ([payment.units for payment in payments], last) == ([1, 2], latest)
        assert ranges(front) == [62, 31, 15, *[7, 14] * 6, 7, 13, 6, 7]
        # The next read starts with the span that the node accepted.
        front.calls.clear()
        watcher.node.read_unconfirmed(watcher.cursor, latest)
        assert ranges(front)[0] == 12


def test_read_unconfirmed_begins_no_range_when_its_time_is_over(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 40)
    with before(anvil) as front:
        watcher = watching(token, front, confirmations=40)
        token.pay(1)
        mine(anvil, 20)
        front.fault = limited_to(10)
        assert watcher.cursor is not None
        latest = int(anvil.rpc("eth_blockNumber"), 16)
        for asked in (61, 30, 15):
            front.calls.clear()
            with pytest.raises(ChainUnavailable):
                watcher.node.read_unconfirmed(watcher.cursor, latest, until=0.0)
            assert ranges(front) == [asked]
        front.calls.clear()
        found = watcher.node.read_unconfirmed(watcher.cursor, latest, until=0.0)
        assert (found, ranges(front)) == (([], watcher.cursor.number + 7), [7])
