"""The use of the response cache by one exchange: finds its answer there, or keeps it."""

from __future__ import annotations

import logging
from functools import partial

from msgspec.structs import replace

from catalog.dialects.shared.raw import Piece
from catalog.operations import OPERATIONS
from config.api.errors import GatewayError, TooManyRequests, Unavailable
from config.database.driver import Rejected
from config.server.batching.waits import Blocked
from inference.exchange.gateway import Exchange
from inference.exchange.metadata import routing_metadata
from inference.exchange.tap import KnownAnswer, Tap, Ways
from inference.faces.connection import Connection
from inference.models import Generation
from inference.repeats.answers import CachedAnswer, KeptAnswers, KeptResponse
from inference.repeats.caching import (
    identify_deployment,
    make_cache_key,
    read_wish,
    renew_events,
    renew_reply,
)
from inference.repeats.recorder import Copy
from inference.settlement.settle import Settlement

logger = logging.getLogger(__name__)

_STATUS = b"x-openrouter-cache-status"
_AGE = b"x-openrouter-cache-age"
_TTL = b"x-openrouter-cache-ttl"
_LEFT_OUT = b"x-left-out"
_KIND = b"content-type"


class CacheUse(Tap):
    """Answers an admitted request from the cache, or copies its answer for the cache.

    An entry is used only if the deployment that answered it, with the credential that it was called
    with, is a candidate of this request too: so nobody gets an answer that its policy forbids, or
    that of a deployment that was replaced.
    """

    def __init__(self, answers: KeptAnswers, connection: Connection, exchange: Exchange) -> None:
        self._answers = answers
        self._connection = connection
        self._exchange = exchange
        self._request = exchange.admission.request
        self._wish = read_wish(connection)
        self._copy = Copy(exchange.occupancy)
        self._key = b""
        # A whole answer as the exchange rendered it.
        self._rendered: list[Piece] | None = None
        self._is_hit = False
        self._is_native = False

    async def find_answer(self) -> KnownAnswer | None:
        """Returns the answer of the cache for this generation, which is then settled at no cost.

        Raises :class:`TooManyRequests` if its organization holds too many bytes for it.
        """
        connection, exchange = self._connection, self._exchange
        self._key = await connection.workload.run(
            self._request.size, make_cache_key, connection, exchange.admission
        )
        try:
            found = await self._find_entry()
            answer = None if found is None else await self._read(found)
        except TooManyRequests:
            # Its organization holds too much: another call of the upstream would hold more.
            raise
        except (Blocked, GatewayError, Rejected) as exc:
            if not isinstance(exc, Unavailable):
                logger.warning("the response cache is not read: %s", type(exc).__name__)
            found = answer = None
        if found is None or answer is None:
            seconds = str(self._wish.seconds).encode()
            connection.cache_headers = ((_STATUS, b"MISS"), (_TTL, seconds))
            return None
        connection.cache_headers = (
            (_STATUS, b"HIT"),
            (_AGE, str(found.age).encode()),
            (_TTL, str(found.seconds_left).encode()),
        )
        kept = dict(answer.headers)
        exchange.attempts.left_out[:] = (
            kept[_LEFT_OUT].decode().split(", ") if _LEFT_OUT in kept else []
        )
        exchange.settle(cached_from=found.generation_id)
        self._is_hit = True
        connection.kind = kept.get(_KIND, b"")
        return KnownAnswer(answer.body, answer.is_native)

    def deliver(self, ways: Ways) -> Ways:
        """Copies what is delivered, by the way on which it is."""

        async def deliver(data: bytes) -> None:
            self._copy.add(data)
            await ways.deliver(data)

        async def relay(data: bytes) -> None:
            self._is_native = True
            self._copy.add(data)
            await ways.relay(data)

        def rewrite(reply: list[Piece]) -> list[Piece]:
            # A thread may call this: bytes are counted on the event loop alone.
            self._rendered = reply
            return ways.rewrite(reply)

        return Ways(deliver, relay, rewrite)

    async def reply(self, pieces: list[Piece] | None) -> None:
        """Keeps the answer; one that nobody rewrote had the caller's own format."""
        if self._is_hit:
            return
        if pieces is not None:
            self._is_native = self._rendered is None
            for piece in self._rendered or pieces:
                self._copy.add(piece)
            self._rendered = None
        await self._keep()

    async def _keep(self) -> None:
        """Keeps the answer of an exchange that has completed; nothing of any other."""
        outcome, body = self._exchange.outcome, self._copy.whole()
        if (
            body is None
            or not self._exchange.admission.keeping.is_cached
            or outcome is None
            or outcome.usage is None
            or outcome.status != Generation.Status.COMPLETED
            or self._exchange.has_failed_choice
            or self._may_be_cut(outcome)
            # Changed content filters have changed what the key of the entry stands for.
            or self._exchange.admission.request is not self._request
        ):
            return
        kind = self._connection.kind
        kept = [pair for pair in self._connection.common_headers() if pair[0] == _LEFT_OUT]
        await self._answers.keep(
            KeptResponse(
                memoryview(body),
                [*kept, (_KIND, kind)] if kind else kept,
                streamed=self._request.stream,
                is_native=self._is_native,
            ),
            self._exchange.organization_id,
            self._exchange.generation_id,
            self._connection.workload,
            seconds=self._wish.seconds,
            cache_key=self._key,
            endpoint_id=identify_deployment(self._exchange.attempts.candidate),
        )

    def _may_be_cut(self, outcome: Settlement) -> bool:
        """Returns whether an answer may be short because its key could pay no longer one."""
        # The reason is that of the last choice.
        is_cut = outcome.finish_reason == "length" or self._request.choices > 1
        return is_cut and self._exchange.attempts.item.max_tokens is not None

    async def _find_entry(self) -> CachedAnswer | None:
        if self._wish.is_cleared:
            return None
        organization_id = self._exchange.organization_id
        cached = await self._answers.find(organization_id, self._key)
        if cached is None:
            return None
        deployments = (
            identify_deployment(item.candidate) for item in self._exchange.admission.candidates
        )
        return cached if cached.endpoint_id in deployments else None

    async def _read(self, cached: CachedAnswer) -> KeptResponse | None:
        """Returns the answer of an entry for this generation; raises the refusals of budgets."""
        return await self._answers.read(
            self._exchange.organization_id,
            cached,
            self._connection.workload,
            cache_key=self._key,
            renew=partial(self._renew, cached.generation_id),
        )

    def _renew(self, source: str, answer: KeptResponse) -> KeptResponse:
        """Returns an answer with the id, the cost and the metadata of this generation."""
        admission = self._exchange.admission
        if OPERATIONS[self._request.operation].is_bytes:
            return answer
        metadata = {}
        if admission.is_metadata_wanted:
            metadata["openrouter_metadata"] = routing_metadata(
                admission.selection,
                (),
                region=admission.region,
                findings=admission.findings,
                retry_of=admission.retry_of,
                cached_from=source,
            )
        renew = renew_events if answer.streamed else renew_reply
        body = renew(answer.body, source, self._exchange.generation_id, metadata)
        return replace(answer, body=memoryview(body))
