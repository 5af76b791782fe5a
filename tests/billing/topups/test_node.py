"""Payments are read from real nodes, and from nodes whose answers are spoilt on the way."""

from __future__ import annotations

import itertools
import json
import logging
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from eth_utils import keccak

from billing.topups import node as chain_module
from billing.topups import rpc
from billing.topups.chains import Chain
from billing.topups.node import (
    TRANSFER,
    ChainPayment,
    Cursor,
    Node,
    Reorganized,
)
from billing.topups.rpc import ChainContradiction, ChainError, ChainUnavailable
from config.egress.addresses import EgressPolicy
from tests.support.nodes import (
    RECIPIENT,
    Answers,
    Anvil,
    Contract,
    EthTester,
    Fault,
    Front,
    before,
    chain_of,
    deploy,
    http_response,
)

STRANGER = "0x" + "11" * 20


class Watcher:
    """Keeps what a scan tells as its user must: each batch together with its cursor."""

    def __init__(self, chain: Chain, **options: Any) -> None:
        options = {"calls_per_second": 100_000, **options}
        self.node = Node(chain, EgressPolicy(), **options)
        self.cursor: Cursor | None = None
        self.deposits: list[ChainPayment] = []

    def look(self) -> list[ChainPayment]:
        """Scans once, and returns what is new."""
        known = len(self.deposits)
        for deposits, cursor in self.node.scan(self.cursor):
            self.deposits += deposits
            self.cursor = cursor
        return self.deposits[known:]

    def units(self) -> list[int]:
        return [deposit.units for deposit in self.deposits]


def watching(contract: Contract, front: Front | None = None, **options: Any) -> Watcher:
    """Returns a watcher that begins after what the chain holds now."""
    confirmations = options.pop("confirmations", "finalized")
    url = front.url if front else ""
    watcher = Watcher(chain_of(contract, url=url, confirmations=confirmations), **options)
    assert watcher.look() == []
    if front is not None:
        front.calls.clear()
    return watcher


def mine(node: Anvil, blocks: int) -> None:
    node.rpc("anvil_mine", hex(blocks))


def test_the_topic_is_that_of_a_transfer() -> None:
    assert "0x" + keccak(text="Transfer(address,address,uint256)").hex() == TRANSFER


def test_a_payment_is_read_with_its_facts(evm: EthTester, token: Contract) -> None:
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


def test_without_a_cursor_the_scan_begins_at_the_confirmed_head(
    evm: EthTester, token: Contract
) -> None:
    token.pay(5)
    block = evm.rpc("eth_getBlockByNumber", "latest", False)
    node = Node(chain_of(token), EgressPolicy())
    assert list(node.scan(None)) == [([], Cursor(int(block["number"], 16), block["hash"]))]


def test_two_payments_of_one_transaction_have_their_own_ordinals(token: Contract) -> None:
    watcher = watching(token)
    tx_hash = token.pay_twice(7, 7)
    found = [(deposit.tx_hash, deposit.ordinal, deposit.units) for deposit in watcher.look()]
    assert found == [(tx_hash, 1, 7), (tx_hash, 3, 7)]


def test_payments_of_one_block_are_told_apart(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 2)
    watcher = watching(token)
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


def test_what_is_no_payment_is_not_read(evm: EthTester, token: Contract) -> None:
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


def test_the_sender_is_who_owned_the_money(token: Contract) -> None:
    watcher = watching(token)
    token.send("approve(address,uint256)", token.payers[1], 9)
    token.send("transferFrom(address,address,uint256)", token.payers[0], RECIPIENT, 9, payer=1)
    (deposit,) = watcher.look()
    assert (deposit.sender, deposit.units) == (token.payers[0], 9)


def test_a_scan_that_is_given_up_goes_on_from_its_cursor(
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


def of(method: str, change: Callable[[Any], Any]) -> Fault:
    """Returns a fault that changes the results of one method."""

    def spoil(calls: Answers, answers: Answers) -> Answers:
        for asked, answer in zip(calls, answers, strict=True):
            if asked["method"] == method:
                answer["result"] = change(answer["result"])
        return answers

    return spoil


def asks_logs(calls: Answers) -> bool:
    return "eth_getLogs" in [asked["method"] for asked in calls]


def responding(body: bytes, status: str = "200 OK", headers: str = "") -> Fault:
    return lambda calls, answers: http_response(body, status, headers)


def refusing(code: int, method: str = "eth_getLogs") -> Fault:
    def spoil(calls: Answers, answers: Answers) -> Answers:
        for asked, answer in zip(calls, answers, strict=True):
            if asked["method"] == method:
                del answer["result"]
                answer["error"] = {"code": code, "message": "see https://x/v2/node-key"}
        return answers

    return spoil


def truncated(calls: Answers, answers: Answers) -> bytes:
    return http_response(json.dumps(answers).encode())[:-20]


def cut(calls: Answers, answers: Answers) -> bytes:
    return http_response(json.dumps(answers).encode()[:-20])


def changed(**fields: Any) -> Callable[[Any], Any]:
    return lambda result: {**result, **fields}


def logs(**fields: Any) -> Fault:
    return of("eth_getLogs", lambda found: [{**log, **fields} for log in found])


def receipt_logs(**fields: Any) -> Fault:
    return of(
        "eth_getTransactionReceipt",
        lambda receipt: {**receipt, "logs": [{**log, **fields} for log in receipt["logs"]]},
    )


def answered(change: Callable[[Answers], Any]) -> Fault:
    return lambda calls, answers: change(answers)


def in_days(days: float) -> int:
    return int(time.time() + days * 86_400)


HTML = b"<!doctype html><title>node-key</title>"
OTHER = "0x" + "ab" * 32
LATEST = ("eth_getBlockByNumber", "latest", False)
NO_JSON = "The node's answer is not JSON."
NOT_RPC = "The node's answer is not JSON-RPC."
OTHER_ANSWERS = "The node's answers do not belong to the calls."
SHAPE = "A result of the node has another shape."
NOT_ASKED = "The node gives a log that was not asked for."
NOT_IN_RECEIPT = "A log is not in its receipt."
OTHER_RECEIPT = "A receipt is of another transaction or block."

FAULTS: dict[str, tuple[Fault, type[ChainError], str]] = {
    "429": (
        responding(HTML, "429 Too Many Requests"),
        ChainUnavailable,
        "The node answers with status 429.",
    ),
    "401": (
        responding(HTML, "401 Unauthorized"),
        ChainUnavailable,
        "The node answers with status 401.",
    ),
    "502": (
        responding(HTML, "502 Bad Gateway"),
        ChainUnavailable,
        "The node answers with status 502.",
    ),
    "redirect": (
        responding(b"", "302 Found", "Location: https://x/v2/node-key\r\n"),
        ChainUnavailable,
        "The node cannot be called: the answer is a redirect.",
    ),
    "HTML": (responding(HTML), ChainUnavailable, NO_JSON),
    "nothing": (responding(b""), ChainUnavailable, NO_JSON),
    "wrong encoding": (
        lambda calls, answers: http_response(
            json.dumps(answers).encode().replace(b'"hash": "0x', b'"hash": "\xff\xff')
        ),
        ChainContradiction,
        SHAPE,
    ),
    "nested without end": (
        responding(b'[{"id": 0, "result": ' + b"[" * 100_000),
        ChainUnavailable,
        NO_JSON,
    ),
    "cut in the body": (
        truncated,
        ChainUnavailable,
        "The node cannot be called: the answer is not usable HTTP: ended early.",
    ),
    "cut JSON": (cut, ChainUnavailable, NO_JSON),
    "no HTTP": (
        lambda calls, answers: b"node-key\r\n\r\n",
        ChainUnavailable,
        "The node cannot be called: the answer is not usable HTTP.",
    ),
    "rate limit inside the answer": (
        refusing(429),
        ChainUnavailable,
        "The node refuses eth_getLogs with error 429.",
    ),
    "every range refused": (
        refusing(-32005),
        ChainUnavailable,
        "The node refuses eth_getLogs with error -32005.",
    ),
    "tag refused": (
        refusing(-32602, "eth_getBlockByNumber"),
        ChainUnavailable,
        "The node refuses eth_getBlockByNumber with error -32602.",
    ),
    "receipt refused": (
        refusing(-32000, "eth_getTransactionReceipt"),
        ChainUnavailable,
        "The node refuses eth_getTransactionReceipt with error -32000.",
    ),
    "batch refused": (
        responding(b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": ""}}'),
        ChainUnavailable,
        "The node refuses a batch of calls with error -32600.",
    ),
    "a list of numbers": (responding(b"[1, 2, 3]"), ChainContradiction, NOT_RPC),
    "an object": (responding(b"{}"), ChainContradiction, NOT_RPC),
    "an answer too few": (answered(lambda answers: answers[1:]), ChainContradiction, OTHER_ANSWERS),
    "one answer twice": (
        answered(lambda answers: [answers[0]] * len(answers)),
        ChainContradiction,
        OTHER_ANSWERS,
    ),
    "all answers twice": (
        answered(lambda answers: answers * 2),
        ChainContradiction,
        OTHER_ANSWERS,
    ),
    "other ids": (
        answered(lambda answers: [{**answer, "id": answer["id"] + 1} for answer in answers]),
        ChainContradiction,
        OTHER_ANSWERS,
    ),
    "wrong chain": (
        of("eth_chainId", lambda _: "0x1"),
        ChainContradiction,
        "The node is on chain 1.",
    ),
    "chain id as a number": (of("eth_chainId", lambda _: 8453), ChainContradiction, SHAPE),
    "no block yet": (
        of("eth_getBlockByNumber", lambda _: None),
        ChainUnavailable,
        "The node knows no finalized block yet.",
    ),
    "a block without a hash": (
        of("eth_getBlockByNumber", changed(hash=None)),
        ChainContradiction,
        SHAPE,
    ),
    "a block of the end of time": (
        of("eth_getBlockByNumber", changed(timestamp="0x7fffffffffffffff")),
        ChainContradiction,
        "A block has an impossible time.",
    ),
    "a block of the last year": (
        of("eth_getBlockByNumber", changed(timestamp=hex(253402300799))),
        ChainContradiction,
        "A block has an impossible time.",
    ),
    "a block of the day after tomorrow": (
        of("eth_getBlockByNumber", lambda block: {**block, "timestamp": hex(in_days(2))}),
        ChainContradiction,
        "A block has an impossible time.",
    ),
    "a number too large": (
        of("eth_getBlockByNumber", changed(number="0x8000000000000000")),
        ChainContradiction,
        SHAPE,
    ),
    "going back": (
        of("eth_getBlockByNumber", changed(number="0x0")),
        ChainContradiction,
        "The node has gone back behind a block that it confirmed.",
    ),
    "null logs": (of("eth_getLogs", lambda _: None), ChainContradiction, SHAPE),
    "a log in two ways": (
        of("eth_getLogs", lambda found: [*found, changed(data="0x" + "0" * 63 + "1")(found[0])]),
        ChainContradiction,
        "The node reports one log in two versions.",
    ),
    "a removed log": (logs(removed=True), ChainContradiction, NOT_ASKED),
    "a log of another contract": (logs(address=STRANGER), ChainContradiction, NOT_ASKED),
    "a log of an earlier block": (logs(blockNumber="0x1"), ChainContradiction, NOT_ASKED),
    "a log of another event": (
        logs(topics=[OTHER, "0x" + "0" * 64, "0x" + RECIPIENT[2:].lower().rjust(64, "0")]),
        ChainContradiction,
        NOT_ASKED,
    ),
    "a log for somebody else": (
        logs(topics=[TRANSFER, "0x" + "0" * 64, "0x" + "0" * 64]),
        ChainContradiction,
        NOT_ASKED,
    ),
    "a log of a sender that is none": (
        logs(topics=[TRANSFER, OTHER, "0x" + RECIPIENT[2:].lower().rjust(64, "0")]),
        ChainContradiction,
        NOT_ASKED,
    ),
    "a log with too few topics": (logs(topics=[TRANSFER]), ChainContradiction, NOT_ASKED),
    "a log without an amount": (logs(data="0x"), ChainContradiction, NOT_ASKED),
    "a log that is no text": (logs(data=1), ChainContradiction, SHAPE),
    "a log with a larger amount": (
        logs(data="0x" + "f" * 64),
        ChainContradiction,
        NOT_IN_RECEIPT,
    ),
    "null receipt": (
        of("eth_getTransactionReceipt", lambda _: None),
        ChainContradiction,
        "The node lacks the receipt of a log that it gave.",
    ),
    "a receipt of a failure": (
        of("eth_getTransactionReceipt", changed(status="0x0")),
        ChainContradiction,
        "A log is of a transaction that failed.",
    ),
    "a receipt without a status": (
        of("eth_getTransactionReceipt", changed(status=None)),
        ChainContradiction,
        SHAPE,
    ),
    "a receipt of another transaction": (
        of("eth_getTransactionReceipt", changed(transactionHash=OTHER)),
        ChainContradiction,
        OTHER_RECEIPT,
    ),
    "a receipt of another block": (
        of("eth_getTransactionReceipt", changed(blockHash=OTHER)),
        ChainContradiction,
        OTHER_RECEIPT,
    ),
    "a receipt of another height": (
        of("eth_getTransactionReceipt", changed(blockNumber="0x1")),
        ChainContradiction,
        OTHER_RECEIPT,
    ),
    "a log of another block than its receipt": (
        logs(blockHash=OTHER),
        ChainContradiction,
        "A log is in another block than its receipt.",
    ),
    "a receipt without the log": (
        of("eth_getTransactionReceipt", changed(logs=[])),
        ChainContradiction,
        NOT_IN_RECEIPT,
    ),
    "a receipt with the log twice": (
        of(
            "eth_getTransactionReceipt",
            lambda receipt: {**receipt, "logs": receipt["logs"] * 2},
        ),
        ChainContradiction,
        NOT_IN_RECEIPT,
    ),
    "a receipt of another amount": (
        receipt_logs(data="0x" + "0" * 63 + "1"),
        ChainContradiction,
        NOT_IN_RECEIPT,
    ),
    "a receipt of another contract": (
        receipt_logs(address=STRANGER),
        ChainContradiction,
        NOT_IN_RECEIPT,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_loses_and_doubles_nothing(
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
    assert str(caught.value) == message
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


def test_a_log_that_is_told_twice_is_one_payment(token: Contract, front: Front) -> None:
    watcher = watching(token, front)
    token.pay_twice(6, 7)
    front.fault = of("eth_getLogs", lambda found: [*found, *found[::-1]])
    watcher.look()
    assert watcher.units() == [6, 7]


def test_answers_may_come_in_any_order(token: Contract, front: Front) -> None:
    watcher = watching(token, front)
    token.pay(5)
    front.fault = answered(lambda answers: answers[::-1])
    watcher.look()
    assert watcher.units() == [5]


def test_a_node_that_lags_behind_its_own_head_is_not_believed(
    token: Contract, front: Front
) -> None:
    """Behind a balancer the next node may lack the last blocks, and then finds no logs there."""
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


def test_a_head_that_changes_during_a_scan_is_not_believed(token: Contract, front: Front) -> None:
    watcher = watching(token, front)
    token.pay(5)

    def changing(calls: Answers, answers: Answers) -> Answers:
        if asks_logs(calls):
            answers[2]["result"]["hash"] = OTHER
        return answers

    front.fault = changing
    with pytest.raises(ChainContradiction, match=r"^The node reports one block in two versions\.$"):
        watcher.look()
    assert watcher.deposits == []


def test_another_block_than_was_asked_for_is_not_believed(token: Contract, front: Front) -> None:
    node = Node(chain_of(token, url=front.url), EgressPolicy())
    front.fault = of("eth_getBlockByNumber", changed(number="0x2"))
    assert node.block(2).number == 2
    with pytest.raises(ChainContradiction, match=r"^The node gives another block than was asked"):
        node.block(1)


def test_a_clock_that_is_less_than_a_day_ahead_is_believed(token: Contract, front: Front) -> None:
    node = Node(chain_of(token, url=front.url), EgressPolicy())
    moment = in_days(0.9)
    front.fault = of("eth_getBlockByNumber", changed(timestamp=hex(moment)))
    assert node.block(1).mined_at == datetime.fromtimestamp(moment, UTC)


def test_a_missing_block_is_said(token: Contract) -> None:
    with pytest.raises(ChainContradiction, match=r"^The node lacks block 1000000\.$"):
        Node(chain_of(token), EgressPolicy()).block(1_000_000)


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [
        ("429 Too Many Requests", "17", 17.0),
        ("503 Service Unavailable", "0", 0.0),
        ("429 Too Many Requests", "99999", 3600.0),
        ("429 Too Many Requests", "9" * 1000, 3600.0),
        ("429 Too Many Requests", "Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("429 Too Many Requests", "Wed, 21 Oct 2015 07:28:00 -0000", 0.0),
        # The workers of one run must give it the same name.
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
def test_the_wish_of_a_node_to_wait_is_kept(
    status: str, header: str, seconds: float | None, token: Contract, front: Front
) -> None:
    front.fault = responding(b"", status, f"Retry-After: {header}\r\n")
    with pytest.raises(ChainUnavailable) as caught:
        list(Node(chain_of(token, url=front.url), EgressPolicy()).scan(None))
    assert caught.value.retry_after == seconds


def test_a_node_that_drips_is_given_up(token: Contract, front: Front) -> None:
    watcher = watching(token, front, timeout=0.3)
    token.pay(5)
    front.drip = 0.01
    with pytest.raises(ChainUnavailable, match=r"^The node cannot be called: timed out: total\.$"):
        watcher.look()
    front.drip = 0.0
    assert [deposit.units for deposit in watcher.look()] == [5]


def test_an_oversized_answer_is_given_up(
    token: Contract, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc, "MAX_ANSWER_BYTES", 20_000)
    watcher = watching(token, front)
    token.pay(5)
    front.fault = of("eth_getLogs", lambda found: [*found, " " * 20_000])
    with pytest.raises(ChainUnavailable, match=r"^The node cannot be called: the answer is too"):
        watcher.look()
    front.fault = lambda calls, answers: answers
    assert [deposit.units for deposit in watcher.look()] == [5]


def test_a_node_that_is_away_is_said(token: Contract, front: Front) -> None:
    chain = chain_of(token, url="http://127.0.0.1:1/v2/node-key")
    with pytest.raises(ChainUnavailable) as caught:
        list(Node(chain, EgressPolicy()).scan(None))
    assert str(caught.value) == "The node cannot be called: could not connect."


def test_calls_keep_their_pace(
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
    ((_, cursor),) = node.scan(None)  # two calls
    token.pay(5)
    ((deposits, _),) = node.scan(cursor)  # two, three, two
    assert [deposit.units for deposit in deposits] == [5]
    assert len(front.calls) == 9
    assert slept == [0.5, 0.5, 0.75]
    now += 100
    node.block(1)
    assert slept == [0.5, 0.5, 0.75]


def test_a_batch_with_too_many_transactions_is_split(
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


def test_one_block_with_many_transactions_is_read_whole(
    anvil: Anvil, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_module, "MAX_TRANSACTIONS", 2)
    token = deploy(anvil)
    mine(anvil, 2)
    watcher = watching(token)
    anvil.rpc("evm_setAutomine", False)
    for units in (1, 2, 3):
        token.pay(units)
    mine(anvil, 3)
    watcher.look()
    assert watcher.units() == [1, 2, 3]


def test_a_changed_chain_halts_the_scan(evm: EthTester, token: Contract) -> None:
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
        evm.rpc("evm_mine")  # also when the chain has grown beyond the cursor
    assert (watcher.units(), watcher.cursor) == ([5], seen)


def ranges(front: Front) -> list[int]:
    """Returns how many blocks each call for logs asked for."""
    return [
        int(wanted["toBlock"], 16) - int(wanted["fromBlock"], 16) + 1
        for (wanted,) in front.asked("eth_getLogs")
    ]


def test_a_long_range_is_read_in_growing_parts(
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
def test_a_refused_range_is_halved_until_it_goes_through(anvil: Anvil, refusal: str) -> None:
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
        # After a success twice as much is tried.
        assert ranges(front) == [123, 61, 30, 60, 33]


def limited_to(blocks: int) -> Fault:
    """Returns a fault that refuses logs of more blocks, as small plans of hosted nodes do."""

    def spoil(calls: Answers, answers: Answers) -> Answers:
        for asked in calls:
            if asked["method"] == "eth_getLogs":
                wanted = asked["params"][0]
                if int(wanted["toBlock"], 16) - int(wanted["fromBlock"], 16) >= blocks:
                    return [{"id": answer["id"], "error": {"code": -32600}} for answer in answers]
        return answers

    return spoil


def failing_after(receipts: int, response: bytes) -> Fault:
    """Returns a fault that lets so many receipts through and then none."""
    left = itertools.count()

    def spoil(calls: Answers, answers: Answers) -> Answers | bytes:
        if calls[0]["method"] == "eth_getTransactionReceipt" and next(left) >= receipts:
            return response
        return answers

    return spoil


@pytest.mark.parametrize(
    "response",
    [
        http_response(b"", "429 Too Many Requests", "Retry-After: 7\r\n"),
        http_response(b"", "502 Bad Gateway"),
        http_response(HTML),
        http_response(b"[]"),
    ],
)
def test_blocks_that_are_read_are_kept_when_the_next_one_fails(
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
    # None of the third block comes in part.
    with pytest.raises(ChainError):
        watcher.look()
    assert watcher.units() == [1, 11, 2, 12]
    front.fault = lambda calls, answers: answers
    watcher.look()
    assert watcher.units() == [1, 11, 2, 12, 3, 13]


def test_a_block_that_is_read_in_part_is_not_kept(anvil: Anvil) -> None:
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


def test_a_scan_that_is_late_begins_no_further_block_of_a_batch(token: Contract) -> None:
    watcher = watching(token)
    for units in (1, 2, 3):
        token.pay(units)
    assert watcher.cursor is not None
    batches = list(watcher.node.scan(watcher.cursor, until=0.0))
    assert [[deposit.units for deposit in deposits] for deposits, _ in batches] == [[1], [2], [3]]
    assert [cursor.number - watcher.cursor.number for _, cursor in batches] == [1, 2, 3]


def test_a_refused_look_ahead_is_halved_until_it_goes_through(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 40)
    with before(anvil) as front:
        watcher = watching(token, front, confirmations=40)
        token.pay(1)
        mine(anvil, 20)
        token.pay(2)
        front.fault = limited_to(10)
        assert watcher.cursor is not None
        payments, latest = watcher.node.read_unconfirmed(watcher.cursor)
        assert [payment.units for payment in payments] == [1, 2]
        assert latest == int(anvil.rpc("eth_blockNumber"), 16)
        assert ranges(front) == [62, 31, 15, *[7, 14] * 6, 7, 13, 6, 7]
        # What was learned holds for what is read next.
        front.calls.clear()
        watcher.node.read_unconfirmed(watcher.cursor)
        assert ranges(front)[0] == 12


def test_anvil_tells_the_same_facts(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 2)
    watcher = watching(token)
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
    # In the block there is a log before them.
    assert [int(log["logIndex"], 16) for log in receipt["logs"]] == [1, 2, 3, 4]
    assert {(found.chain_id, found.block_hash, found.mined_at) for found in deposits} == {
        (8453, block["hash"], datetime.fromtimestamp(int(block["timestamp"], 16), UTC))
    }


@pytest.mark.parametrize(
    ("confirmations", "depth"), [("safe", 1), ("finalized", 2), (1, 1), (7, 7)]
)
def test_a_payment_counts_once_it_is_confirmed(
    anvil: Anvil, confirmations: Any, depth: int
) -> None:
    token = deploy(anvil)
    mine(anvil, depth)
    watcher = watching(token, confirmations=confirmations)
    token.pay(5)
    for _ in range(depth - 1):
        mine(anvil, 1)
        assert watcher.look() == []
    mine(anvil, 1)
    assert [deposit.units for deposit in watcher.look()] == [5]


def test_a_chain_shorter_than_its_confirmations_begins_at_its_first_block(anvil: Anvil) -> None:
    token = deploy(anvil)
    assert watching(token, confirmations=50).cursor == Cursor(
        0, anvil.rpc("eth_getBlockByNumber", "0x0", False)["hash"]
    )


def test_a_reorganization_before_finality_moves_a_payment_and_doubles_none(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 6)
    watcher = watching(token, confirmations=4)
    tx_hash = token.pay(5)
    sent = anvil.rpc("eth_getTransactionByHash", tx_hash)
    mine(anvil, 2)
    assert watcher.look() == []
    anvil.rpc("anvil_reorg", 3, [])
    assert anvil.rpc("eth_getTransactionReceipt", tx_hash) is None
    assert watcher.look() == []
    anvil.rpc(
        "eth_sendTransaction",
        {name: sent[name] for name in ("from", "to", "input", "nonce", "gas", "value")},
    )
    mine(anvil, 4)
    (deposit,) = watcher.look()
    assert (deposit.units, deposit.ordinal) == (5, 0)
    assert deposit.block_hash != sent["blockHash"]
    assert watcher.look() == []


def test_a_reorganization_before_finality_can_take_a_payment_back(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 6)
    watcher = watching(token)
    snapshot = anvil.rpc("evm_snapshot")
    token.pay(5)
    assert watcher.look() == []
    anvil.rpc("evm_revert", snapshot)
    token.pay(6)
    mine(anvil, 3)
    assert [deposit.units for deposit in watcher.look()] == [6]


def test_a_reorganization_after_confirmation_halts_the_scan(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 6)
    watcher = watching(token, confirmations=2)
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


def test_a_node_that_was_set_back_is_not_believed(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 6)
    snapshot = anvil.rpc("evm_snapshot")
    watcher = watching(token, confirmations=1)
    token.pay(5)
    mine(anvil, 1)
    watcher.look()
    anvil.rpc("evm_revert", snapshot)
    with pytest.raises(ChainContradiction, match=r"^The node has gone back behind a block"):
        watcher.look()
    assert watcher.units() == [5]


def test_a_scan_crosses_a_transaction_storm_of_strangers(anvil: Anvil) -> None:
    token = deploy(anvil)
    mine(anvil, 2)
    watcher = watching(token)
    anvil.rpc("evm_setAutomine", False)
    for place in range(60):
        token.pay(place + 1, to=RECIPIENT if place % 3 else STRANGER)
    mine(anvil, 3)
    anvil.rpc("evm_setAutomine", True)
    watcher.look()
    assert sorted(watcher.units()) == [place + 1 for place in range(60) if place % 3]
    assert len({(found.tx_hash, found.ordinal) for found in watcher.deposits}) == 40
