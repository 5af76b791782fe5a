"""Reads payments from a chain through one EVM node, and trusts the node as little as possible.

A payment is a `Transfer` of one of the chain's tokens to one of its recipients, in a confirmed
block. Tokens and recipients of an earlier configuration count while a top-up may still be paid with
them. `Node.scan` continues from a cursor, the number and hash of a block. The caller stores the
payments of a batch and the new cursor in one transaction, so that no fault loses or repeats one.

Nodes often stand behind a load balancer, and a node that lags answers with fewer logs and no error.
So the answers that must agree come from one JSON-RPC batch, which one node answers: the cursor's
block, the logs, and the last block of their range. Every log is then checked against its receipt
and against the block of its number.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Literal

import msgspec

from billing.topups.chains import Chain, Token, checksum_address
from billing.topups.payments import ChainBlock, ChainPayment, Cursor, UnconfirmedPayment
from billing.topups.rpc import (
    Address,
    Call,
    CallReverted,
    ChainContradiction,
    ChainError,
    ChainRefused,
    ChainUnavailable,
    Data,
    Hash,
    Quantity,
    RpcClient,
    decode,
)
from config.clocks.clock import clock
from config.egress import EgressPolicy

# Keccak-256 of "Transfer(address,address,uint256)".
TRANSFER = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"

# The first four bytes of Keccak-256 of "decimals()" and "symbol()".
_DECIMALS = "0x313ce567"
_SYMBOL = "0x95d89b41"

FIRST_SPAN = 2_000
MAX_SPAN = 10_000
# Each transaction needs a call for its receipt, and each batch is stored at once.
MAX_TRANSACTIONS = 500
_MAX_CLOCK_AHEAD = timedelta(days=1)
_HINT = " If it has no {} blocks, set CHAIN_CONFIRMATIONS to a number of blocks."


class ChainLags(ChainUnavailable):
    """The node does not know a block yet that it or another node at its URL reported before."""


class TokenRefused(ChainContradiction):
    """The contract is not the token of the settings; an operator must correct `CHAIN_TOKENS`."""


class Reorganized(ChainError):
    """The cursor's block is no longer in the chain; an operator must check what was credited."""


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


@dataclass(frozen=True, slots=True)
class _TransferFilter:
    """Selects the payments of a chain among the logs of a range of blocks."""

    contracts: list[str]
    topics: list[str]
    first: int
    last: int

    @classmethod
    def between(cls, chain: Chain, first: int, last: int) -> _TransferFilter:
        return cls(
            [contract.lower() for contract in chain.tokens],
            [_topic(recipient) for recipient in chain.recipients],
            first,
            last,
        )

    @property
    def parameters(self) -> dict[str, Any]:
        """Returns the parameters of `eth_getLogs`."""
        return {
            "fromBlock": hex(self.first),
            "toBlock": hex(self.last),
            "address": _one_or_many(self.contracts),
            "topics": [TRANSFER, None, _one_or_many(self.topics)],
        }

    def parse_logs(self, result: msgspec.Raw) -> list[_Log]:
        """Returns the logs. Raises `ChainContradiction` for one that the filter excludes.

        Some nodes send null for a range without logs.
        """
        try:
            logs: list[_Log] = decode(result, list[_Log] | None) or []
            if not all(map(self.is_match, logs)):
                raise ChainContradiction("The node sent a log that we did not ask for.")
        except ChainContradiction as exc:
            raise _explain(exc, f"Blocks {self.first} to {self.last}") from None
        return logs

    def is_match(self, log: _Log) -> bool:
        return (
            not log.removed
            and self.first <= int(log.block_number, 16) <= self.last
            and log.address.lower() in self.contracts
            and len(log.topics) == 3
            and log.topics[0] == TRANSFER
            and int(log.topics[1], 16) < 2**160
            and log.topics[2] in self.topics
            and len(log.data) == 66
        )


class Node:
    """Reads one chain through the operator's node; one instance serves one thread."""

    def __init__(
        self,
        chain: Chain,
        policy: EgressPolicy,
        *,
        calls_per_second: float = 10.0,
        timeout: float = 20.0,
    ) -> None:
        self.chain = chain
        self._rpc = RpcClient(
            chain.rpc_url, policy, calls_per_second=calls_per_second, timeout=timeout
        )
        # The largest range of blocks that the node is known or expected to answer in one call.
        self.span = FIRST_SPAN
        # The latest block when the confirmed head was read last.
        self.latest: ChainBlock | None = None

    def scan(
        self, cursor: Cursor | None, *, until: float = math.inf
    ) -> Iterator[tuple[list[ChainPayment], Cursor]]:
        """Yields the payments after the cursor, up to the confirmed head, batch by batch.

        Every batch comes with the cursor to store with it. Without a cursor, the confirmed head
        becomes the first one: earlier payments belong to nobody. If a block cannot be read, yields
        the payments of the blocks before it first. Begins no further block of a batch once the
        monotonic clock is past `until`. Raises `ChainError`.
        """
        head = self.read_confirmed_head()
        if cursor is None:
            yield [], Cursor(head.number, head.hash)
            return
        if head.number < cursor.number:
            raise self._explain_lower_head(head, cursor)
        if head.number == cursor.number and head.hash != cursor.hash:
            raise _reorganization_error(cursor)
        while cursor.number < head.number:
            end = min(cursor.number + self.span, head.number)
            try:
                logs, last = self._read_logs(cursor, end)
                if last.number == head.number and last.hash != head.hash:
                    raise ChainContradiction("The node sent two versions of one block.")
                payments, reached, failure = self._read_payments(logs, last, until)
            except ChainRefused:
                self._narrow_span(end - cursor.number)
                if end == cursor.number + 1 or time.monotonic() > until:
                    raise
                continue
            if reached.number == end:
                self._widen_span(end - cursor.number)
            cursor = Cursor(reached.number, reached.hash)
            yield payments, cursor
            if failure is not None:
                raise failure

    def read_unconfirmed(
        self, cursor: Cursor, latest: int, *, until: float = math.inf
    ) -> tuple[list[UnconfirmedPayment], int]:
        """Returns the payments after a confirmed block, and the number of the last block read.

        Reads up to `latest`, and begins no further range once the monotonic clock is past `until`.
        The payments are not checked against receipts, and may be gone at the next call. Raises
        `ChainError`.
        """
        payments: list[UnconfirmedPayment] = []
        known = cursor.number
        while known < latest:
            end = min(known + self.span, latest)
            try:
                payments += self._read_unconfirmed_range(known + 1, end)
            except ChainRefused:
                self._narrow_span(end - known)
                if end == known + 1 or time.monotonic() > until:
                    raise
                continue
            self._widen_span(end - known)
            known = end
            if time.monotonic() > until:
                break
        return payments, known

    def read_confirmed_head(self) -> ChainBlock:
        """Returns the last block that counts as confirmed, after a check of the chain id.

        Sets `latest`.
        """
        depth = self.chain.confirmations
        if isinstance(depth, int):
            (latest,) = self._read_tagged_blocks("latest")
            head = self.read_block(max(latest.number - depth, 0))
        else:
            head, latest = self._read_tagged_blocks(depth, "latest")
        self.latest = latest
        return head

    def read_block(self, number: int) -> ChainBlock:
        """Returns the block of that number. Raises `ChainContradiction` when there is none."""
        (answer,) = self._rpc.call(("eth_getBlockByNumber", [hex(number), False]))
        return _parse_block(answer, number)

    def find_payment(self, tx_hash: str, ordinal: int, cursor: Cursor) -> ChainPayment | None:
        """Returns the payment at a place of a transaction, or None if the chain has none there.

        Its block may be one after the cursor. The node that says there is none is one that knows
        the cursor's block. Raises `Reorganized` if that was replaced, and another `ChainError`.
        """
        before, answer = self._rpc.call(
            ("eth_getBlockByNumber", [hex(cursor.number), False]),
            ("eth_getTransactionReceipt", [tx_hash]),
        )
        if _parse_block(before, cursor.number).hash != cursor.hash:
            raise _reorganization_error(cursor)
        receipt: _Receipt | None = decode(answer, _Receipt | None)
        if receipt is None or ordinal >= len(receipt.logs):
            return None
        log = receipt.logs[ordinal]
        if not _TransferFilter.between(self.chain, 0, _block_number(log)).is_match(log):
            return None
        (payment,), _ = self._read_payments_of_block([log])
        return payment

    def check_token(self, token: Token) -> str:
        """Returns the symbol that the contract gives itself, or an empty text.

        Raises `TokenRefused` unless the contract has the decimals of the settings, and another
        `ChainError` when the node does not tell.
        """
        contract = token.contract.lower()
        where = f"CHAIN_TOKENS: chain {self.chain.chain_id}: the contract {token.contract}"
        chain_id, code = self._rpc.call(("eth_chainId", []), ("eth_getCode", [contract, "latest"]))
        self._require_chain(chain_id)
        if decode(code, Data) == "0x":
            raise TokenRefused(f"{where} does not exist on this chain.")
        decimals, symbol = self._rpc.call_each(
            _view_of(contract, _DECIMALS), _view_of(contract, _SYMBOL)
        )
        if isinstance(decimals, ChainUnavailable) and not isinstance(decimals, CallReverted):
            raise decimals
        told = "0x" if isinstance(decimals, ChainUnavailable) else decode(decimals, Data)
        if len(told) != 66 or int(told, 16) > 255:
            raise TokenRefused(f"{where} does not tell its decimals, so it is no token.")
        if int(told, 16) != token.decimals:
            raise TokenRefused(
                f"{where} has {int(told, 16)} decimals, and the settings say {token.decimals}."
            )
        return "" if isinstance(symbol, ChainUnavailable) else _parse_symbol(decode(symbol, Data))

    def _explain_lower_head(self, head: ChainBlock, cursor: Cursor) -> ChainError:
        """Returns the error for a confirmed head before the cursor.

        The node still has the cursor's block when only more confirmations are asked for.
        """
        try:
            is_known = self.read_block(cursor.number).hash == cursor.hash
        except ChainContradiction:
            is_known = False
        if is_known:
            return ChainLags(
                f"The confirmed head is block {head.number}, but block {cursor.number} was read "
                "already: CHAIN_CONFIRMATIONS was raised, or this node lags. Reading continues "
                "when the head has passed that block."
            )
        return ChainContradiction(
            "The node's confirmed head moved back behind a block that it had confirmed."
        )

    def _require_chain(self, result: msgspec.Raw) -> None:
        found = int(decode(result, Quantity), 16)
        if found != self.chain.chain_id:
            raise ChainContradiction(f"The node is on chain {found}.")

    def _read_tagged_blocks(
        self, *tags: Literal["latest", "finalized", "safe"]
    ) -> list[ChainBlock]:
        chain_id, *answers = self._rpc.call_each(
            ("eth_chainId", []), *(("eth_getBlockByNumber", [tag, False]) for tag in tags)
        )
        self._require_chain(_require(chain_id))
        blocks = []
        for tag, answer in zip(tags, answers, strict=True):
            hint = "" if tag == "latest" else _HINT.format(tag)
            if isinstance(answer, ChainUnavailable):
                raise ChainRefused(f"{answer}{hint}")
            block: _Block | None = decode(answer, _Block | None)
            if block is None:
                raise ChainUnavailable(f"The node knows no {tag} block yet.{hint}")
            blocks.append(_to_block(block))
        return blocks

    def _narrow_span(self, asked: int) -> None:
        # The refusal of a single block does not depend on the size of the range.
        if asked > 1:
            self.span = asked // 2

    def _widen_span(self, asked: int) -> None:
        if asked == self.span:
            self.span = min(self.span * 2, MAX_SPAN)

    def _read_logs(self, cursor: Cursor, end: int) -> tuple[list[_Log], ChainBlock]:
        """Returns the logs of payments after the cursor up to a block, and that block."""
        wanted = _TransferFilter.between(self.chain, cursor.number + 1, end)
        before, found, after = self._rpc.call_each(
            ("eth_getBlockByNumber", [hex(cursor.number), False]),
            ("eth_getLogs", [wanted.parameters]),
            ("eth_getBlockByNumber", [hex(end), False]),
        )
        if _parse_block(_require(before), cursor.number).hash != cursor.hash:
            raise _reorganization_error(cursor)
        # Nodes refuse a range beyond their head, or have no logs in it: both say nothing about it.
        last = _parse_block(_require(after), end)
        logs: dict[tuple[str, int], _Log] = {}
        for log in wanted.parse_logs(_require(found)):
            known = logs.setdefault((log.transaction_hash, int(log.log_index, 16)), log)
            if known != log:
                raise ChainContradiction("The node sent two versions of one log.")
        # Anybody can make a token log a transfer of zero units from any sender.
        paid = [log for log in logs.values() if int(log.data, 16)]
        transactions = {log.transaction_hash for log in paid}
        if len(transactions) > MAX_TRANSACTIONS and end > cursor.number + 1:
            raise ChainRefused("One batch of blocks has too many payments.")
        return paid, last

    def _read_unconfirmed_range(self, first: int, last: int) -> list[UnconfirmedPayment]:
        wanted = _TransferFilter.between(self.chain, first, last)
        found, after = self._rpc.call_each(
            ("eth_getLogs", [wanted.parameters]),
            ("eth_getBlockByNumber", [hex(last), False]),
        )
        if decode(_require(after), _Block | None) is None:
            raise ChainLags("The node has not reached the latest block yet.")
        return [
            UnconfirmedPayment(
                tx_hash=log.transaction_hash,
                block_number=int(log.block_number, 16),
                token=_address(log.address),
                sender=_address(log.topics[1]),
                recipient=_address(log.topics[2]),
                units=int(log.data, 16),
            )
            for log in wanted.parse_logs(_require(found))
        ]

    def _read_payments(
        self, logs: Sequence[_Log], last: ChainBlock, until: float
    ) -> tuple[list[ChainPayment], ChainBlock, ChainError | None]:
        """Returns the payments up to the last block read, that block, and the next block's error.

        The last block read is `last`, unless an error occurs or the time is up. Raises an error of
        the first block.
        """
        payments: list[ChainPayment] = []
        reached = None
        in_order = sorted(logs, key=_block_number)
        for _, logs_of_block in groupby(in_order, key=_block_number):
            if reached is not None and time.monotonic() > until:
                return payments, reached, None
            try:
                found, block = self._read_payments_of_block(logs_of_block)
            except ChainError as exc:
                if reached is None:
                    raise
                return payments, reached, exc
            payments += found
            reached = block
        return payments, last, None

    def _read_payments_of_block(
        self, logs: Iterable[_Log]
    ) -> tuple[list[ChainPayment], ChainBlock]:
        receipts: dict[str, tuple[_Receipt, ChainBlock]] = {}
        payments = []
        for log in logs:
            try:
                if log.transaction_hash not in receipts:
                    receipts[log.transaction_hash] = self._read_receipt(log)
                receipt, block = receipts[log.transaction_hash]
                ordinal = _ordinal(log, receipt)
            except (ChainContradiction, ChainRefused) as exc:
                where = f"Block {_block_number(log)}, transaction {log.transaction_hash}"
                raise _explain(exc, where) from None
            payments.append(
                ChainPayment(
                    chain_id=self.chain.chain_id,
                    tx_hash=log.transaction_hash,
                    ordinal=ordinal,
                    block_number=block.number,
                    block_hash=block.hash,
                    mined_at=block.mined_at,
                    token=_address(log.address),
                    sender=_address(log.topics[1]),
                    recipient=_address(log.topics[2]),
                    units=int(log.data, 16),
                )
            )
        return payments, block

    def _read_receipt(self, log: _Log) -> tuple[_Receipt, ChainBlock]:
        answer, numbered = self._rpc.call(
            ("eth_getTransactionReceipt", [log.transaction_hash]),
            ("eth_getBlockByNumber", [log.block_number, False]),
        )
        receipt: _Receipt | None = decode(answer, _Receipt | None)
        if receipt is None:
            raise ChainContradiction("The node sent a log but has no receipt for it.")
        block = _parse_block(numbered, int(log.block_number, 16))
        if (receipt.transaction_hash, receipt.block_hash, int(receipt.block_number, 16)) != (
            log.transaction_hash,
            block.hash,
            block.number,
        ):
            raise ChainContradiction("A receipt names another transaction or block than its log.")
        if int(receipt.status, 16) != 1:
            raise ChainContradiction("A log belongs to a transaction that failed.")
        return receipt, block


def _explain(error: ChainError, where: str) -> ChainError:
    """Returns the error of blocks that stop the cursor, with their place and what to do."""
    error.args = (f"{where}: {error} If this lasts, use another node.",)
    return error


def _require(result: msgspec.Raw | ChainUnavailable) -> msgspec.Raw:
    if isinstance(result, ChainUnavailable):
        raise result
    return result


def _view_of(contract: str, selector: str) -> Call:
    return ("eth_call", [{"to": contract, "data": selector}, "latest"])


def _parse_symbol(data: str) -> str:
    """Returns the text of an ABI string, or of the 32 bytes that older tokens have for one."""
    words = bytes.fromhex(data[2:]) if len(data) % 2 == 0 else b""
    is_string = len(words) > 64 and int.from_bytes(words[:32]) == 32
    length = int.from_bytes(words[32:64]) if is_string else 0
    text = words[64 : 64 + length] if is_string else words[:32].rstrip(b"\0")
    return "".join(filter(str.isprintable, text.decode(errors="ignore")))[:32]


def _parse_block(result: msgspec.Raw, number: int) -> ChainBlock:
    found: _Block | None = decode(result, _Block | None)
    if found is None:
        raise ChainContradiction(f"The node lacks block {number}.")
    if int(found.number, 16) != number:
        raise ChainContradiction("The node sent another block than we asked for.")
    return _to_block(found)


def _to_block(block: _Block) -> ChainBlock:
    try:
        mined_at = datetime.fromtimestamp(int(block.timestamp, 16), UTC)
    except (OverflowError, ValueError, OSError):
        raise ChainContradiction("A block has an impossible time.") from None
    if mined_at > clock.now() + _MAX_CLOCK_AHEAD:
        raise ChainContradiction("A block has an impossible time.")
    return ChainBlock(int(block.number, 16), block.hash, mined_at)


def _ordinal(log: _Log, receipt: _Receipt) -> int:
    """Returns the position of the log in its receipt, which must contain exactly one equal log."""
    if receipt.block_hash != log.block_hash:
        raise ChainContradiction("A log and its receipt name different blocks.")
    places = [place for place, other in enumerate(receipt.logs) if other == log]
    if len(places) != 1:
        raise ChainContradiction("A receipt does not contain its log.")
    return places[0]


def _block_number(log: _Log) -> int:
    return int(log.block_number, 16)


def _address(text: str) -> str:
    """Returns the checksummed address in the last 20 bytes of an address or a topic."""
    return checksum_address(bytes.fromhex(text[-40:]))


def _one_or_many(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def _topic(address: str) -> str:
    return "0x" + address[2:].lower().rjust(64, "0")


def _reorganization_error(cursor: Cursor) -> Reorganized:
    return Reorganized(f"Block {cursor.number} was replaced after its payments were read.")
