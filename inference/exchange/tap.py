"""How the road calls what stands beside it: the watcher of a worker, and the taps of a request.

The road knows these protocols alone. ``inference/taps`` has the options and the table of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from billing.rate_limits import RateLimited
from catalog.dialects.base import Operation
from catalog.dialects.shared.raw import Piece
from config.api.errors import GatewayError
from config.egress import OutboundRequest
from inference.filters.definitions import Finding
from inference.requests.parsing import InferenceRequest
from inference.routing.routes import Candidate
from inference.settlement.settle import Settlement

if TYPE_CHECKING:
    from inference.exchange.gateway import Exchange

Deliver = Callable[[bytes], Awaitable[None]]
Rewrite = Callable[[list[Piece]], list[Piece]]


class Ways(NamedTuple):
    """The ways of an answer to its caller.

    ``deliver`` takes events in chat's format, ``relay`` those in the caller's own. ``rewrite`` puts
    a whole reply into the caller's format; it may run in a thread.
    """

    deliver: Deliver
    relay: Deliver
    rewrite: Rewrite


class KnownAnswer(NamedTuple):
    """An answer that needs no upstream; a native one has the caller's own format already."""

    body: memoryview
    is_native: bool


class Tap:
    """One option of one request, from its admission to its end; it may leave out any method."""

    # Whether the work goes on when the caller leaves.
    outlives_caller = False

    def admitted(self, exchange: Exchange) -> None:
        """Follows the admission; raises :class:`GatewayError` to refuse the request still."""

    async def find_answer(self) -> KnownAnswer | None:
        """Returns an answer that is known already; the generation is then settled."""
        return None

    def deliver(self, ways: Ways) -> Ways:
        """Returns the ways of the answer with its own, which lead to the present ones."""
        return ways

    async def reply(self, pieces: list[Piece] | None) -> None:
        """Takes a whole reply before it is sent; ``None`` after the last event of a stream."""

    def ended(self, exchange: Exchange) -> None:
        """Follows the settlement, however the request ended."""


class Watcher(Protocol):
    """Takes notes of a worker's requests for people: figures, alarms, log lines and spans."""

    def note_refusal(self, error: GatewayError) -> None:
        """Notes a request that was refused before it had a generation."""

    def note_limit(self, error: RateLimited) -> None:
        """Notes a request that a rate limit refused."""

    def note_findings(self, findings: Iterable[Finding]) -> None:
        """Notes the texts in which content filters matched."""

    def trace_request(self, outbound: OutboundRequest) -> OutboundRequest:
        """Returns the request of an attempt with the headers that continue a trace."""

    def note_attempt(
        self,
        candidate: Candidate,
        operation: Operation,
        milliseconds: int,
        error: GatewayError | None,
    ) -> None:
        """Notes an attempt whose answer has begun, or that failed."""

    def note_failure(self, candidate: Candidate, error: GatewayError) -> None:
        """Notes an answer that failed after it had begun."""

    def note_fallback(self, candidate: Candidate) -> None:
        """Notes a request that moves on, because this candidate failed."""

    def note_missing_mark(self, candidate: Candidate) -> None:
        """Notes a whole stream that ended without its end mark."""

    def note_end(
        self,
        organization_id: UUID,
        candidate: Candidate,
        request: InferenceRequest,
        outcome: Settlement,
        error: BaseException | None,
    ) -> None:
        """Notes a generation that has ended; the error is that for which it failed."""
