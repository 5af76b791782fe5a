"""Calls one EVM node over JSON-RPC: batches of calls, at a limited pace, with checked answers.

No error contains the node's URL or a text from the node, because either may contain a secret.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

import msgspec

from config.clocks.clock import clock
from config.egress import EgressError, EgressPolicy, OutboundRequest, TimedOut, TooLarge
from config.egress.addresses import ANYWHERE
from config.egress.fetch import fetch

MAX_ANSWER_BYTES = 32 * 1024 * 1024
MAX_WAIT = 3_600.0
_REVERTED = re.compile(r"revert|opcode|jump|execution (error|failed)", re.IGNORECASE)
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}

Call = tuple[str, list[Any]]

# The encodings of https://ethereum.github.io/execution-apis/; quantities are limited to a BIGINT.
Quantity = Annotated[str, msgspec.Meta(pattern=r"^0x[0-7]?[0-9a-f]{1,15}\Z")]
Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]{64}\Z")]
Address = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{40}\Z")]
Data = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-f]*\Z")]


class ChainError(Exception):
    """No further payments can be read now; the cursor stays where it is."""


class ChainUnavailable(ChainError):
    """The node refuses or does not answer; `retry_after` is the wait that it names, in seconds."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ChainRefused(ChainUnavailable):
    """The node refuses these calls or cannot finish them; a smaller range of blocks may succeed."""


class CallReverted(ChainRefused):
    """The contract refuses a call, or has no such function."""


class ChainContradiction(ChainError):
    """The node's answers contradict each other or the configured chain."""


class _Error(msgspec.Struct):
    code: int
    message: Any = None
    data: Any = None


class _Answer(msgspec.Struct):
    id: int | None = None
    # An answer without a result has an unexpected shape; a null may be one.
    result: msgspec.Raw = msgspec.Raw()
    error: _Error | None = None


class RpcClient:
    """Sends batches of calls to one node, from one thread.

    `policy` gives the pinned hosts, the certificate authorities and the connection's time limit;
    its allowed addresses are not used here. Each call of a batch counts towards `calls_per_second`.
    """

    def __init__(
        self, url: str, policy: EgressPolicy, *, calls_per_second: float, timeout: float
    ) -> None:
        self._url = url
        self._policy = replace(
            policy, allowed_networks=ANYWHERE, max_response_bytes=MAX_ANSWER_BYTES
        )
        self._seconds_per_call = 1 / calls_per_second
        self._timeout = timeout
        self._free_at = 0.0

    def call(self, *calls: Call) -> list[msgspec.Raw]:
        """Sends the calls as one batch and returns their results, in order. Raises `ChainError`."""
        results = []
        for result in self.call_each(*calls):
            if isinstance(result, ChainUnavailable):
                raise result
            results.append(result)
        return results

    def call_each(self, *calls: Call) -> list[msgspec.Raw | ChainUnavailable]:
        """Sends the calls as one batch and returns the result or the refusal of each, in order.

        Raises `ChainError` when the whole batch fails, or when the node asks to wait.
        """
        self._wait_for_turn(len(calls))
        body, retry_after = self._exchange(calls)
        answers = _parse_answers(body)
        if isinstance(answers, _Answer):
            if answers.error is None:
                raise ChainContradiction("The node's answer is not JSON-RPC.")
            raise _refusal("a batch of calls", answers.error, retry_after)
        by_id = {answer.id: answer for answer in answers}
        if len(answers) != len(calls) or by_id.keys() != set(range(len(calls))):
            raise ChainContradiction("The node's answers do not match the calls.")
        results: list[msgspec.Raw | ChainUnavailable] = []
        for place, (method, _) in enumerate(calls):
            answer = by_id[place]
            if answer.error is None:
                results.append(answer.result)
                continue
            refusal = _refusal(method, answer.error, retry_after)
            if not isinstance(refusal, ChainRefused):
                raise refusal
            results.append(refusal)
        return results

    def _exchange(self, calls: Sequence[Call]) -> tuple[bytes, float | None]:
        """Returns the answer's body and the wait that its head asks for."""
        body = msgspec.json.encode(
            [
                {"jsonrpc": "2.0", "id": place, "method": method, "params": params}
                for place, (method, params) in enumerate(calls)
            ]
        )
        request = OutboundRequest("POST", self._url, _HEADERS, body)
        try:
            status, headers, answer = fetch(request, self._policy, self._timeout)
        except EgressError as exc:
            too_much = isinstance(exc, TooLarge) or (
                isinstance(exc, TimedOut) and exc.phase == "total"
            )
            kind = ChainRefused if too_much else ChainUnavailable
            raise kind(f"The call of the node failed: {exc}.") from None
        retry_after = _parse_retry_after(headers.get("Retry-After", ""))
        if status >= 400 and retry_after is None:
            retry_after = _parse_wait_of_body(answer)
        if status == 429 or (status >= 400 and retry_after is not None):
            raise ChainUnavailable(f"The node answered with status {status}.", retry_after)
        if status != 200:
            # Nodes refuse a range that is too wide with different statuses, such as 400, 413, 500,
            # 502 and 504.
            raise ChainRefused(f"The node answered with status {status}.")
        return answer, retry_after

    def _wait_for_turn(self, calls: int) -> None:
        now = time.monotonic()
        if self._free_at > now:
            time.sleep(self._free_at - now)
        self._free_at = max(self._free_at, now) + calls * self._seconds_per_call


def decode(result: msgspec.Raw, kind: Any) -> Any:
    """Returns the result of a call as `kind`. Raises `ChainContradiction` for any other shape."""
    try:
        return msgspec.json.decode(result, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ChainContradiction("A result of the node has an unexpected shape.") from None


def _parse_answers(body: bytes) -> list[_Answer] | _Answer:
    try:
        return msgspec.json.decode(body, type=list[_Answer] | _Answer)
    except msgspec.ValidationError:
        raise ChainContradiction("The node's answer is not JSON-RPC.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ChainUnavailable("The node's answer is not JSON.") from None


def _refusal(subject: str, error: _Error, retry_after: float | None) -> ChainUnavailable:
    """Returns the exception for an error of the node; one that asks to wait refuses no range."""
    message = f"The node refused {subject} with error {error.code}."
    wait = _parse_wait(error.data)
    wait = retry_after if wait is None else wait
    # Some nodes put the HTTP status into the error code of an answer with status 200.
    if error.code == 429 or wait is not None:
        return ChainUnavailable(message, wait)
    # Geth's code for a call that reverts; others say it in words.
    if error.code == 3 or _REVERTED.search(str(error.message)):
        return CallReverted(message)
    return ChainRefused(message)


def _parse_wait_of_body(body: bytes) -> float | None:
    """Returns the wait of the first error that names one in the body of an HTTP error."""
    try:
        answers = _parse_answers(body)
    except ChainError:
        return None
    errors = [each.error for each in (answers if isinstance(answers, list) else [answers])]
    waits = [_parse_wait(error.data) for error in errors if error is not None]
    return next((wait for wait in waits if wait is not None), None)


def _parse_wait(data: Any) -> float | None:
    """Returns the seconds in `backoff_seconds` of an error's data, or of its `rate`."""
    if not isinstance(data, dict):
        return None
    rate = data.get("rate")
    wait = data.get("backoff_seconds")
    if wait is None and isinstance(rate, dict):
        wait = rate.get("backoff_seconds")
    if isinstance(wait, str) and _SECONDS.fullmatch(wait):
        wait = float(wait)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or wait < 0:
        return None
    return float(min(wait, MAX_WAIT))


def _parse_retry_after(text: str) -> float | None:
    """Returns the seconds that a `Retry-After` header asks to wait, at most an hour."""
    if _SECONDS.fullmatch(text) or (text.isascii() and text.isdigit()):
        return min(float(text), MAX_WAIT)
    try:
        moment = parsedate_to_datetime(text)
    except (OverflowError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - clock.now()).total_seconds(), 0.0), MAX_WAIT)
