"""Reads payments from a chain through one EVM node's JSON-RPC, and believes it as little as it can.

A payment is a `Transfer` of the chain's token to the operator's recipient, or of those that were
configured before and somebody may still pay, in a block that is confirmed. `Node.scan` goes on from
a cursor, a block's number and hash; whoever stores the deposits of a batch stores the new cursor in
the same transaction, so that no fault loses or doubles one.

Nodes often stand behind a balancer, and one that lags answers with fewer logs and no error. So what
must fit together is asked in one JSON-RPC batch, which one node answers: the cursor's block, the
logs, and the last block of their range. Every log is then checked against its receipt and against
the block of its number.

The node's URL and the node's own words are in no error: either may hold a secret.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec

from billing.topups.chains import ANYWHERE, Chain, checksummed
from config.egress import EgressError, EgressPolicy, OutboundRequest, TimedOut, TooLarge, fetch

# Keccak-256 of "Transfer(address,address,uint256)".
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"

FIRST_SPAN = 2_000
MAX_SPAN = 10_000
# A transaction costs a receipt, and a batch of deposits is stored at once.
MAX_TRANSACTIONS = 500
MAX_ANSWER_BYTES = 32 * 1024 * 1024
MAX_WAIT = 3_600.0
_MAX_CLOCK_AHEAD = timedelta(days=1)
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}

Call = tuple[str, list[Any]]

# As in the specification of the JSON-RPC interface; quantities up to a BIGINT.
Quantity = Annotated[str, msgspec.Meta(pattern=r"^0x[0-7]?[0-9a-f]{1,15}\Z")]
Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
Address = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{40}\Z")]
Data = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]*\Z")]


class ChainError(Exception):
    """No further payments can be told now; the cursor stays where it is."""


class ChainUnavailable(ChainError):
    """The node gives no answer or refuses; `retry_after` is its own wish in seconds, if any."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ChainRefused(ChainUnavailable):
    """The node refuses these calls, or cannot finish them; fewer blocks may go through."""


class ChainLags(ChainUnavailable):
    """The node does not know yet what it, or another behind the same address, told before."""


class ChainContradiction(ChainError):
    """The node's answers do not fit each other, or the chain that was configured."""


class Reorganized(ChainError):
    """The cursor's block is no longer in the chain: a person must look at what was credited."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """Is the last block whose payments are known."""

    number: int
    hash: str


@dataclass(frozen=True, slots=True)
class Block:
    """Is a block of the chain."""

    number: int
    hash: str
    mined_at: datetime


@dataclass(frozen=True, slots=True)
class Deposit:
    """Is one confirmed payment, unique by chain, transaction and ordinal.

    The ordinal is the log's place in its transaction's receipt, from 0: unlike the log's index in
    the block it survives a reorganization. Addresses are checksummed, hashes lowercase.
    """

    chain_id: int
    tx_hash: str
    ordinal: int
    block_number: int
    block_hash: str
    mined_at: datetime
    token: str
    sender: str
    recipient: str
    units: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """Is a payment in a block that may still be replaced: nothing may be credited for it."""

    tx_hash: str
    block_number: int
    token: str
    sender: str
    recipient: str
    units: int


class _Error(msgspec.Struct):
    code: int


class _Answer(msgspec.Struct):
    id: int | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: _Error | None = None


class _Block(msgspec.Struct):
    number: Quantity
    hash: Hash
    timestamp: Quantity


class _Log(msgspec.Struct, rename="camel", frozen=True):
    address: Address
    topics: list[Hash]
    data: Data
    block_number: Quantity
    block_hash: Hash
    transaction_hash: Hash
    log_index: Quantity
    removed: bool = False


class _Receipt(msgspec.Struct, rename="camel"):
    transaction_hash: Hash
    block_hash: Hash
    block_number: Quantity
    status: Quantity
    logs: list[_Log]


class Node:
    """Is the operator's node of one chain; one instance serves one thread.

    `policy` gives the name pins, the authorities and the connection's time limit; the addresses it
    allows do not matter here. Each call counts towards `calls_per_second`, also inside a batch.
    """

    def __init__(
        self,
        chain: Chain,
        policy: EgressPolicy,
        *,
        calls_per_second: float = 10.0,
        timeout: float = 20.0,
    ) -> None:
        self.chain = chain
        self._policy = replace(
            policy, allowed_networks=ANYWHERE, max_response_bytes=MAX_ANSWER_BYTES
        )
        self._seconds_per_call = 1 / calls_per_second
        self._timeout = timeout
        self._free_at = 0.0
        # How many blocks it lets be asked for at once, as far as that is known.
        self.span = FIRST_SPAN

    def scan(
        self, cursor: Cursor | None, *, until: float = math.inf
    ) -> Iterator[tuple[list[Deposit], Cursor]]:
        """Iterates over the payments after the cursor, up to the confirmed head, batch by batch.

        Every batch comes with the cursor to store with it. Without a cursor, the confirmed head
        becomes the first one: earlier payments are nobody's. What is read is given even if the next
        block cannot be, and once the monotonic clock is past `until` no further block of a batch is
        begun. Raises `ChainError`.
        """
        head = self.confirmed_head()
        if cursor is None:
            yield [], Cursor(head.number, head.hash)
            return
        if head.number < cursor.number:
            raise ChainContradiction("The node has gone back behind a block that it confirmed.")
        if head.number == cursor.number and head.hash != cursor.hash:
            raise _reorganized(cursor)
        while cursor.number < head.number:
            end = min(cursor.number + self.span, head.number)
            try:
                logs, last = self._logs(cursor, end)
                if last.number == head.number and last.hash != head.hash:
                    raise ChainContradiction("The node tells one block in two ways.")
                deposits, reached, failure = self._deposits(logs, last, until)
            except ChainRefused:
                self._narrow(end - cursor.number)
                if end == cursor.number + 1 or time.monotonic() > until:
                    raise
                continue
            if reached.number == end:
                self._widen(end - cursor.number)
            cursor = Cursor(reached.number, reached.hash)
            yield deposits, cursor
            if failure is not None:
                raise failure

    def look_ahead(self, cursor: Cursor) -> tuple[list[Sighting], int]:
        """Returns the payments after a confirmed block, and the number of the latest block.

        They are not checked against receipts, and may be gone the next time. Raises `ChainError`.
        """
        latest = self._own_block("latest").number
        sightings: list[Sighting] = []
        known = cursor.number
        while known < latest:
            end = min(known + self.span, latest)
            try:
                sightings += self._sightings(known + 1, end)
            except ChainRefused:
                self._narrow(end - known)
                if end == known + 1:
                    raise
                continue
            self._widen(end - known)
            known = end
        return sightings, latest

    def _sightings(self, first: int, last: int) -> list[Sighting]:
        found, after = self._ask(
            ("eth_getLogs", [self._wanted(first, last)]),
            ("eth_getBlockByNumber", [hex(last), False]),
        )
        if _decode(after, _Block | None) is None:
            raise ChainLags("The node lags behind the latest block.")
        logs: list[_Log] = _decode(found, list[_Log])
        for log in logs:
            self._check_wanted(log, first, last)
        return [
            Sighting(
                tx_hash=log.transaction_hash,
                block_number=int(log.block_number, 16),
                token=_address(log.address),
                sender=_address(log.topics[1]),
                recipient=_address(log.topics[2]),
                units=int(log.data, 16),
            )
            for log in logs
        ]

    def _narrow(self, asked: int) -> None:
        # One block that is refused says nothing of a range.
        if asked > 1:
            self.span = asked // 2

    def _widen(self, asked: int) -> None:
        if asked == self.span:
            self.span = min(self.span * 2, MAX_SPAN)

    def confirmed_head(self) -> Block:
        """Returns the last block that counts as confirmed, once the node is on the right chain."""
        depth = self.chain.confirmations
        if isinstance(depth, int):
            latest = self._own_block("latest")
            return self.block(max(latest.number - depth, 0))
        return self._own_block(depth)

    def block(self, number: int) -> Block:
        """Returns the block of that number. Raises `ChainContradiction` when there is none."""
        (answer,) = self._ask(("eth_getBlockByNumber", [hex(number), False]))
        return _numbered(answer, number)

    def _own_block(self, tag: Literal["latest", "finalized", "safe"]) -> Block:
        chain_id, answer = self._ask(("eth_chainId", []), ("eth_getBlockByNumber", [tag, False]))
        found = int(_decode(chain_id, Quantity), 16)
        if found != self.chain.chain_id:
            raise ChainContradiction(f"The node is on chain {found}.")
        block: _Block | None = _decode(answer, _Block | None)
        if block is None:
            raise ChainUnavailable(f"The node knows no {tag} block yet.")
        return _block(block)

    def _logs(self, cursor: Cursor, end: int) -> tuple[list[_Log], Block]:
        """Returns the transfers after the cursor up to a block, and that block."""
        before, found, after = self._ask(
            ("eth_getBlockByNumber", [hex(cursor.number), False]),
            ("eth_getLogs", [self._wanted(cursor.number + 1, end)]),
            ("eth_getBlockByNumber", [hex(end), False]),
        )
        if _numbered(before, cursor.number).hash != cursor.hash:
            raise _reorganized(cursor)
        last = _numbered(after, end)
        logs: dict[tuple[str, int], _Log] = {}
        log: _Log
        for log in _decode(found, list[_Log]):
            self._check_wanted(log, cursor.number + 1, end)
            known = logs.setdefault((log.transaction_hash, int(log.log_index, 16)), log)
            if known != log:
                raise ChainContradiction("The node tells one log in two ways.")
        # Anybody can make a token say that anybody sent nothing.
        paid = [log for log in logs.values() if int(log.data, 16)]
        transactions = {log.transaction_hash for log in paid}
        if len(transactions) > MAX_TRANSACTIONS and end > cursor.number + 1:
            raise ChainRefused("There are too many payments for one batch.")
        return paid, last

    def _wanted(self, first: int, last: int) -> dict[str, Any]:
        return {
            "fromBlock": hex(first),
            "toBlock": hex(last),
            "address": _one_or_many(self._contracts()),
            "topics": [TRANSFER, None, _one_or_many(self._recipients())],
        }

    def _contracts(self) -> list[str]:
        return [contract.lower() for contract in self.chain.tokens]

    def _recipients(self) -> list[str]:
        return [_topic(recipient) for recipient in self.chain.recipients]

    def _check_wanted(self, log: _Log, first: int, last: int) -> None:
        if (
            log.removed
            or not first <= int(log.block_number, 16) <= last
            or log.address.lower() not in self._contracts()
            or len(log.topics) != 3
            or log.topics[0] != TRANSFER
            or int(log.topics[1], 16) >= 2**160
            or log.topics[2] not in self._recipients()
            or len(log.data) != 66
        ):
            raise ChainContradiction("The node gives a log that was not asked for.")

    def _deposits(
        self, logs: Sequence[_Log], last: Block, until: float
    ) -> tuple[list[Deposit], Block, ChainError | None]:
        """Returns the payments up to a block, that block, and what was wrong with the next one.

        Without a fault and in time that is the last block. A fault of the first one is raised.
        """
        deposits: list[Deposit] = []
        reached = None
        in_order = sorted(logs, key=_block_number)
        for _, of_block in groupby(in_order, key=_block_number):
            if reached is not None and time.monotonic() > until:
                return deposits, reached, None
            try:
                found, block = self._deposits_of_block(of_block)
            except ChainError as exc:
                if reached is None:
                    raise
                return deposits, reached, exc
            deposits += found
            reached = block
        return deposits, last, None

    def _deposits_of_block(self, logs: Iterable[_Log]) -> tuple[list[Deposit], Block]:
        receipts: dict[str, tuple[_Receipt, Block]] = {}
        deposits = []
        for log in logs:
            if log.transaction_hash not in receipts:
                receipts[log.transaction_hash] = self._receipt(log)
            receipt, block = receipts[log.transaction_hash]
            if receipt.block_hash != log.block_hash:
                raise ChainContradiction("A log is in another block than its receipt.")
            deposits.append(
                Deposit(
                    chain_id=self.chain.chain_id,
                    tx_hash=log.transaction_hash,
                    ordinal=_ordinal(log, receipt),
                    block_number=block.number,
                    block_hash=block.hash,
                    mined_at=block.mined_at,
                    token=_address(log.address),
                    sender=_address(log.topics[1]),
                    recipient=_address(log.topics[2]),
                    units=int(log.data, 16),
                )
            )
        return deposits, block

    def _receipt(self, log: _Log) -> tuple[_Receipt, Block]:
        answer, numbered = self._ask(
            ("eth_getTransactionReceipt", [log.transaction_hash]),
            ("eth_getBlockByNumber", [log.block_number, False]),
        )
        receipt: _Receipt | None = _decode(answer, _Receipt | None)
        if receipt is None:
            raise ChainContradiction("The node lacks the receipt of a log that it gave.")
        block = _numbered(numbered, int(log.block_number, 16))
        if (receipt.transaction_hash, receipt.block_hash, int(receipt.block_number, 16)) != (
            log.transaction_hash,
            block.hash,
            block.number,
        ):
            raise ChainContradiction("A receipt is of another transaction or block.")
        if int(receipt.status, 16) != 1:
            raise ChainContradiction("A log is of a transaction that failed.")
        return receipt, block

    def _ask(self, *calls: Call) -> list[msgspec.Raw]:
        """Sends the calls as one batch and returns their results, in order."""
        self._pace(len(calls))
        answers = _answers(self._exchange(calls))
        if isinstance(answers, _Answer):
            if answers.error is None:
                raise ChainContradiction("The node's answer is not JSON-RPC.")
            raise _refusal("a batch of calls", answers.error)
        by_id = {answer.id: answer for answer in answers}
        if len(answers) != len(calls) or by_id.keys() != set(range(len(calls))):
            raise ChainContradiction("The node's answers are not those to the calls.")
        for place, (method, _) in enumerate(calls):
            if (error := by_id[place].error) is not None:
                raise _refusal(method, error)
        return [by_id[place].result for place in range(len(calls))]

    def _exchange(self, calls: Sequence[Call]) -> bytes:
        body = msgspec.json.encode(
            [
                {"jsonrpc": "2.0", "id": place, "method": method, "params": params}
                for place, (method, params) in enumerate(calls)
            ]
        )
        request = OutboundRequest("POST", self.chain.rpc_url, _HEADERS, body)
        try:
            status, headers, answer = fetch(request, self._policy, self._timeout)
        except EgressError as exc:
            too_much = isinstance(exc, TooLarge) or (
                isinstance(exc, TimedOut) and exc.phase == "total"
            )
            kind = ChainRefused if too_much else ChainUnavailable
            raise kind(f"The node cannot be asked: {exc}.") from None
        retry_after = _seconds(headers.get("Retry-After", ""))
        if status == 429 or (status >= 400 and retry_after is not None):
            raise ChainUnavailable(f"The node answers with status {status}.", retry_after)
        if status != 200:
            # Too wide a range has many statuses: 400, 413, 500, 502 and 504 were all seen.
            raise ChainRefused(f"The node answers with status {status}.")
        return answer

    def _pace(self, calls: int) -> None:
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + calls * self._seconds_per_call


def _answers(body: bytes) -> list[_Answer] | _Answer:
    try:
        return msgspec.json.decode(body, type=list[_Answer] | _Answer)
    except msgspec.ValidationError:
        raise ChainContradiction("The node's answer is not JSON-RPC.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ChainUnavailable("The node's answer is not JSON.") from None


def _decode(result: msgspec.Raw, kind: Any) -> Any:
    try:
        return msgspec.json.decode(result, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ChainContradiction("A result of the node has another shape.") from None


def _numbered(result: msgspec.Raw, number: int) -> Block:
    found: _Block | None = _decode(result, _Block | None)
    if found is None:
        raise ChainContradiction(f"The node lacks block {number}.")
    if int(found.number, 16) != number:
        raise ChainContradiction("The node gives another block than was asked for.")
    return _block(found)


def _block(block: _Block) -> Block:
    try:
        mined_at = datetime.fromtimestamp(int(block.timestamp, 16), UTC)
    except (OverflowError, ValueError, OSError):
        raise ChainContradiction("A block has an impossible time.") from None
    if mined_at > datetime.now(UTC) + _MAX_CLOCK_AHEAD:
        raise ChainContradiction("A block has an impossible time.")
    return Block(int(block.number, 16), block.hash, mined_at)


def _ordinal(log: _Log, receipt: _Receipt) -> int:
    """Returns the place of the log in its receipt, which must hold it once and unchanged."""
    places = [place for place, other in enumerate(receipt.logs) if other == log]
    if len(places) != 1:
        raise ChainContradiction("A log is not in its receipt.")
    return places[0]


def _refusal(what: str, error: _Error) -> ChainUnavailable:
    # Some nodes put the status of HTTP here, in an answer with status 200.
    kind = ChainUnavailable if error.code == 429 else ChainRefused
    return kind(f"The node refuses {what} with error {error.code}.")


def _block_number(log: _Log) -> int:
    return int(log.block_number, 16)


def _address(text: str) -> str:
    """Returns the address that a text is, or that a topic ends with."""
    return checksummed(bytes.fromhex(text[-40:]))


def _one_or_many(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _topic(address: str) -> str:
    return "0x" + address[2:].lower().rjust(64, "0")


def _reorganized(cursor: Cursor) -> Reorganized:
    return Reorganized(f"Block {cursor.number} is no longer the one whose payments were read.")


def _seconds(text: str) -> float | None:
    """Returns how long a `Retry-After` asks to wait, at most an hour."""
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_WAIT)
    try:
        moment = parsedate_to_datetime(text)
    except (OverflowError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - datetime.now(UTC)).total_seconds(), 0.0), MAX_WAIT)
