"""Tests late, truncated, malformed and false answers of a node."""

from __future__ import annotations

import logging
import traceback
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from billing.topups import rpc
from billing.topups.node import Node
from billing.topups.rpc import ChainContradiction, ChainError, ChainUnavailable
from config.egress.addresses import EgressPolicy
from tests.support.chains.node_faults import (
    FAULTS,
    OTHER,
    answered,
    asks_logs,
    changed,
    in_days,
    of,
    responding,
    watching,
)
from tests.support.chains.nodes import Answers, Contract, EthTester, Front, chain_of


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_neither_loses_nor_duplicates_a_payment(
    name: str, token: Contract, front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    fault, kind, message = FAULTS[name]
    watcher = watching(token, front)
    sent = [token.pay(5), token.pay_twice(6, 7)]
    seen = watcher.cursor
    front.fault = fault
    with caplog.at_level(logging.DEBUG), pytest.raises(ChainError) as caught:
        watcher.look()
    assert isinstance(caught.value, kind)
    assert seen is not None
    assert str(caught.value) == message.format(
        block=seen.number + 1, last=seen.number + 2, tx_hash=sent[0]
    )
    shown = "".join(traceback.format_exception(caught.value))
    assert "node-key" not in shown + caplog.text
    assert (watcher.deposits, watcher.cursor) == ([], seen)

    front.fault = lambda calls, answers: answers
    watcher.look()
    assert watcher.look() == []
    assert [(found.tx_hash, found.ordinal, found.units) for found in watcher.deposits] == [
        (sent[0], 0, 5),
        (sent[1], 1, 6),
        (sent[1], 3, 7),
    ]


def test_a_log_that_is_returned_twice_is_one_payment(token: Contract, front: Front) -> None:
    watcher = watching(token, front)
    token.pay_twice(6, 7)
    front.fault = of("eth_getLogs", lambda found: [*found, *found[::-1]])
    watcher.look()
    assert watcher.units() == [6, 7]


def test_null_for_a_range_without_logs_is_an_empty_range(
    evm: EthTester, token: Contract, front: Front
) -> None:
    """Gateways in Go send a nil slice so, for instance."""
    watcher = watching(token, front)
    assert watcher.cursor is not None
    begin = watcher.cursor.number
    evm.rpc("evm_mine")
    front.fault = of("eth_getLogs", lambda found: found or None)
    assert watcher.look() == []
    assert watcher.cursor.number == begin + 1
    token.pay(5)
    assert [deposit.units for deposit in watcher.look()] == [5]


def test_answers_may_come_in_any_order(token: Contract, front: Front) -> None:
    watcher = watching(token, front)
    token.pay(5)
    front.fault = answered(lambda answers: answers[::-1])
    watcher.look()
    assert watcher.units() == [5]


def test_scan_refuses_a_node_that_lags_behind_its_own_head(token: Contract, front: Front) -> None:
    """Simulates a load balancer whose next node lacks the last blocks and returns no logs."""
    watcher = watching(token, front)
    token.pay(5)
    seen = watcher.cursor

    def lagging(calls: Answers, answers: Answers) -> Answers:
        if asks_logs(calls):
            answers[1]["result"] = []
            answers[2]["result"] = None
        return answers

    front.fault = lagging
    with pytest.raises(ChainContradiction, match=r"^The node lacks block \d+\.$"):
        watcher.look()
    assert watcher.cursor == seen
    front.fault = lambda calls, answers: answers
    assert [deposit.units for deposit in watcher.look()] == [5]


def test_scan_refuses_a_head_that_changes_during_the_scan(token: Contract, front: Front) -> None:
    watcher = watching(token, front)
    token.pay(5)

    def changing(calls: Answers, answers: Answers) -> Answers:
        if asks_logs(calls):
            answers[2]["result"]["hash"] = OTHER
        return answers

    front.fault = changing
    with pytest.raises(ChainContradiction, match=r"^The node sent two versions of one block\.$"):
        watcher.look()
    assert watcher.deposits == []


def test_read_block_refuses_a_block_with_another_number(token: Contract, front: Front) -> None:
    token.node.rpc("evm_mine")
    node = Node(chain_of(token, url=front.url), EgressPolicy())
    front.fault = of("eth_getBlockByNumber", changed(number="0x2"))
    assert node.read_block(2).number == 2
    with pytest.raises(ChainContradiction, match=r"^The node sent another block than we asked"):
        node.read_block(1)


def test_read_block_accepts_a_time_less_than_a_day_ahead(token: Contract, front: Front) -> None:
    node = Node(chain_of(token, url=front.url), EgressPolicy())
    moment = in_days(0.9)
    front.fault = of("eth_getBlockByNumber", changed(timestamp=hex(moment)))
    assert node.read_block(1).mined_at == datetime.fromtimestamp(moment, UTC)


def test_read_block_reports_a_missing_block(token: Contract) -> None:
    with pytest.raises(ChainContradiction, match=r"^The node lacks block 1000000\.$"):
        Node(chain_of(token), EgressPolicy()).read_block(1_000_000)


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [
        ("429 Too Many Requests", "17", 17.0),
        ("503 Service Unavailable", "0", 0.0),
        ("429 Too Many Requests", "99999", 3600.0),
        ("429 Too Many Requests", "9" * 1000, 3600.0),
        ("429 Too Many Requests", "Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("429 Too Many Requests", "Wed, 21 Oct 2015 07:28:00 -0000", 0.0),
        # The date changes with time, and all test workers must see the same test name.
        pytest.param(
            "429 Too Many Requests",
            format_datetime(datetime.now(UTC) + timedelta(days=9), usegmt=True),
            3600.0,
            id="in nine days",
        ),
        ("429 Too Many Requests", "soon", None),
        ("429 Too Many Requests", "Thu, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("429 Too Many Requests", "Mon, 01 Jan 0001 00:00:00 +2300", 0.0),
        ("429 Too Many Requests", "Fri, 31 Dec 9999 23:59:59 -2300", 3600.0),
        ("429 Too Many Requests", "", None),
    ],
)
def test_retry_after_of_a_node_is_read_and_limited(
    status: str, header: str, seconds: float | None, token: Contract, front: Front
) -> None:
    front.fault = responding(b"", status, f"Retry-After: {header}\r\n")
    with pytest.raises(ChainUnavailable) as caught:
        list(Node(chain_of(token, url=front.url), EgressPolicy()).scan(None))
    assert caught.value.retry_after == seconds


def test_scan_times_out_when_a_node_drips_its_answer(token: Contract, front: Front) -> None:
    watcher = watching(token, front)
    patient = watcher.node
    token.pay(5)
    watcher.node = Node(patient.chain, EgressPolicy(), timeout=0.3)
    front.drip = 0.01
    with pytest.raises(
        ChainUnavailable, match=r"^The call of the node failed: timed out: total\.$"
    ):
        watcher.look()
    front.drip = 0.0
    watcher.node = patient
    assert [deposit.units for deposit in watcher.look()] == [5]


def test_scan_refuses_an_oversized_answer(
    token: Contract, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "MAX_ANSWER_BYTES", 20_000)
    watcher = watching(token, front)
    token.pay(5)
    front.fault = of("eth_getLogs", lambda found: [*found, " " * 20_000])
    with pytest.raises(ChainUnavailable, match=r"^The call of the node failed: the answer is too"):
        watcher.look()
    front.fault = lambda calls, answers: answers
    assert [deposit.units for deposit in watcher.look()] == [5]


def test_scan_reports_an_unreachable_node(token: Contract, front: Front) -> None:
    chain = chain_of(token, url="http://127.0.0.1:1/v2/node-key")
    with pytest.raises(ChainUnavailable) as caught:
        list(Node(chain, EgressPolicy()).scan(None))
    assert str(caught.value) == "The call of the node failed: could not connect."
