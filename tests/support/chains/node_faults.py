"""Answers of a faulty chain node, and watchers that read through it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from typing import Any

from billing.topups.chains import Chain
from billing.topups.node import TRANSFER, ChainPayment, Cursor, Node
from billing.topups.rpc import ChainContradiction, ChainError, ChainUnavailable
from config.egress.addresses import EgressPolicy
from tests.support.chains.nodes import (
    RECIPIENT,
    Answers,
    Anvil,
    Contract,
    Fault,
    Front,
    chain_of,
    deploy,
    http_response,
)

STRANGER = "0x" + "11" * 20


class Watcher:
    """Stores the results of a scan as the product does: each batch together with its cursor."""

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
    """Returns a watcher that begins after the present head of the chain."""
    confirmations = options.pop("confirmations", "finalized")
    url = front.url if front else ""
    watcher = Watcher(chain_of(contract, url=url, confirmations=confirmations), **options)
    assert watcher.look() == []
    if front is not None:
        front.calls.clear()
    return watcher


def mine(node: Anvil, blocks: int) -> None:
    node.rpc("anvil_mine", hex(blocks))


def send_again(node: Anvil, sent: dict[str, Any]) -> None:
    """Sends a transaction as a node has shown it, after a reorganization for instance."""
    # Another fee would make it another transaction.
    fees = ("maxFeePerGas", "maxPriorityFeePerGas")
    names = ("from", "to", "input", "nonce", "gas", "value", *fees)
    node.rpc("eth_sendTransaction", {name: sent[name] for name in names})


def watching_anvil(anvil: Anvil, blocks: int = 2, **options: Any) -> tuple[Contract, Watcher]:
    """Deploys a token, mines so many blocks, and returns the token and its watcher."""
    token = deploy(anvil)
    mine(anvil, blocks)
    return token, watching(token, **options)


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


def without_result(method: str) -> Fault:
    def spoil(calls: Answers, answers: Answers) -> Answers:
        for asked, answer in zip(calls, answers, strict=True):
            if asked["method"] == method:
                del answer["result"]
        return answers

    return spoil


def changed(**fields: Any) -> Callable[[Any], Any]:
    return lambda result: {**result, **fields}


def logs(**fields: Any) -> Fault:
    return of("eth_getLogs", lambda found: [{**log, **fields} for log in found])


def block(**fields: Any) -> Fault:
    return of("eth_getBlockByNumber", changed(**fields))


def receipt(**fields: Any) -> Fault:
    return of("eth_getTransactionReceipt", changed(**fields))


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
# The topics of a log: an address that is none, and ours.
NOBODY = "0x" + "0" * 64
TO_US = "0x" + RECIPIENT[2:].lower().rjust(64, "0")
NO_JSON = "The node's answer is not JSON."
NOT_RPC = "The node's answer is not JSON-RPC."
OTHER_ANSWERS = "The node's answers do not match the calls."
SHAPE = "A result of the node has an unexpected shape."
IMPOSSIBLE = "A block has an impossible time."
NO_FINAL = "If it has no finalized blocks, set CHAIN_CONFIRMATIONS to a number of blocks."


def stuck(reason: str, where: str = "Block {block}, transaction {tx_hash}") -> str:
    """Returns the message of a cursor that stops, with `block`, `last` and `tx_hash` to fill in."""
    return f"{where}: {reason} If this lasts, use another node."


RANGE = "Blocks {block} to {last}"
NOT_ASKED = stuck("The node sent a log that we did not ask for.", RANGE)
NOT_IN_RECEIPT = stuck("A receipt does not contain its log.")
OTHER_RECEIPT = stuck("A receipt names another transaction or block than its log.")

UNAVAILABLE: dict[str, tuple[Fault, str]] = {
    "429": (responding(HTML, "429 Too Many Requests"), "The node answered with status 429."),
    "401": (responding(HTML, "401 Unauthorized"), "The node answered with status 401."),
    "502": (responding(HTML, "502 Bad Gateway"), "The node answered with status 502."),
    "redirect": (
        responding(b"", "302 Found", "Location: https://x/v2/node-key\r\n"),
        "The call of the node failed: the answer is a redirect.",
    ),
    "HTML": (responding(HTML), NO_JSON),
    "nothing": (responding(b""), NO_JSON),
    "nested without end": (responding(b'[{"id": 0, "result": ' + b"[" * 100_000), NO_JSON),
    "cut in the body": (
        truncated,
        "The call of the node failed: the answer is not usable HTTP: ended early.",
    ),
    "cut JSON": (cut, NO_JSON),
    "no HTTP": (
        lambda calls, answers: b"node-key\r\n\r\n",
        "The call of the node failed: the answer is not usable HTTP.",
    ),
    "rate limit inside the answer": (refusing(429), "The node refused eth_getLogs with error 429."),
    "every range refused": (refusing(-32005), "The node refused eth_getLogs with error -32005."),
    "tag refused": (
        refusing(-32602, "eth_getBlockByNumber"),
        f"The node refused eth_getBlockByNumber with error -32602. {NO_FINAL}",
    ),
    "receipt refused": (
        refusing(-32000, "eth_getTransactionReceipt"),
        stuck("The node refused eth_getTransactionReceipt with error -32000."),
    ),
    "batch refused": (
        responding(b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": ""}}'),
        "The node refused a batch of calls with error -32600.",
    ),
    "no block yet": (
        of("eth_getBlockByNumber", lambda _: None),
        f"The node knows no finalized block yet. {NO_FINAL}",
    ),
}
CONTRADICTIONS: dict[str, tuple[Fault, str]] = {
    "wrong encoding": (
        lambda calls, answers: http_response(
            json.dumps(answers).encode().replace(b'"hash": "0x', b'"hash": "\xff\xff')
        ),
        SHAPE,
    ),
    "a list of numbers": (responding(b"[1, 2, 3]"), NOT_RPC),
    "an object": (responding(b"{}"), NOT_RPC),
    "an answer too few": (answered(lambda answers: answers[1:]), OTHER_ANSWERS),
    "one answer twice": (answered(lambda answers: [answers[0]] * len(answers)), OTHER_ANSWERS),
    "all answers twice": (answered(lambda answers: answers * 2), OTHER_ANSWERS),
    "other ids": (
        answered(lambda answers: [{**answer, "id": answer["id"] + 1} for answer in answers]),
        OTHER_ANSWERS,
    ),
    "wrong chain": (of("eth_chainId", lambda _: "0x1"), "The node is on chain 1."),
    "chain id as a number": (of("eth_chainId", lambda _: 8453), SHAPE),
    "a block without a hash": (block(hash=None), SHAPE),
    "a block of the end of time": (block(timestamp="0x7fffffffffffffff"), IMPOSSIBLE),
    "a block of the last year": (block(timestamp=hex(253402300799)), IMPOSSIBLE),
    "a block of the day after tomorrow": (
        of("eth_getBlockByNumber", lambda block: {**block, "timestamp": hex(in_days(2))}),
        IMPOSSIBLE,
    ),
    "a number too large": (block(number="0x8000000000000000"), SHAPE),
    "going back": (
        block(number="0x0"),
        "The node's confirmed head moved back behind a block that it had confirmed.",
    ),
    "logs without a result": (without_result("eth_getLogs"), stuck(SHAPE, RANGE)),
    "a log in two ways": (
        of("eth_getLogs", lambda found: [*found, changed(data="0x" + "0" * 63 + "1")(found[0])]),
        "The node sent two versions of one log.",
    ),
    "a removed log": (logs(removed=True), NOT_ASKED),
    "a log of another contract": (logs(address=STRANGER), NOT_ASKED),
    "a log of an earlier block": (logs(blockNumber="0x1"), NOT_ASKED),
    "a log of another event": (logs(topics=[OTHER, NOBODY, TO_US]), NOT_ASKED),
    "a log for somebody else": (logs(topics=[TRANSFER, NOBODY, NOBODY]), NOT_ASKED),
    "a log of a sender that is none": (logs(topics=[TRANSFER, OTHER, TO_US]), NOT_ASKED),
    "a log with too few topics": (logs(topics=[TRANSFER]), NOT_ASKED),
    "a log without an amount": (logs(data="0x"), NOT_ASKED),
    "a log that is no text": (logs(data=1), stuck(SHAPE, RANGE)),
    "a log with a larger amount": (logs(data="0x" + "f" * 64), NOT_IN_RECEIPT),
    "null receipt": (
        of("eth_getTransactionReceipt", lambda _: None),
        stuck("The node sent a log but has no receipt for it."),
    ),
    "a receipt of a failure": (
        receipt(status="0x0"),
        stuck("A log belongs to a transaction that failed."),
    ),
    "a receipt without a status": (receipt(status=None), stuck(SHAPE)),
    "a receipt of another transaction": (receipt(transactionHash=OTHER), OTHER_RECEIPT),
    "a receipt of another block": (receipt(blockHash=OTHER), OTHER_RECEIPT),
    "a receipt of another height": (receipt(blockNumber="0x1"), OTHER_RECEIPT),
    "a log of another block than its receipt": (
        logs(blockHash=OTHER),
        stuck("A log and its receipt name different blocks."),
    ),
    "a receipt without the log": (receipt(logs=[]), NOT_IN_RECEIPT),
    "a receipt with the log twice": (
        of("eth_getTransactionReceipt", lambda found: {**found, "logs": found["logs"] * 2}),
        NOT_IN_RECEIPT,
    ),
    "a receipt of another amount": (receipt_logs(data="0x" + "0" * 63 + "1"), NOT_IN_RECEIPT),
    "a receipt of another contract": (receipt_logs(address=STRANGER), NOT_IN_RECEIPT),
}
FAULTS: dict[str, tuple[Fault, type[ChainError], str]] = {
    **{name: (fault, ChainUnavailable, text) for name, (fault, text) in UNAVAILABLE.items()},
    **{name: (fault, ChainContradiction, text) for name, (fault, text) in CONTRADICTIONS.items()},
}


def ranges(front: Front) -> list[int]:
    """Returns how many blocks each call for logs asked for."""
    return [
        int(wanted["toBlock"], 16) - int(wanted["fromBlock"], 16) + 1
        for (wanted,) in front.asked("eth_getLogs")
    ]


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
    """Returns a fault that lets a number of receipts through and then none."""
    left = itertools.count()

    def spoil(calls: Answers, answers: Answers) -> Answers | bytes:
        if calls[0]["method"] == "eth_getTransactionReceipt" and next(left) >= receipts:
            return response
        return answers

    return spoil
