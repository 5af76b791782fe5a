"""Serves requests with an ``Idempotency-Key``: one upstream call and one charge for each key.

A repeat of a request joins the first one, or gets its kept answer, if the workspace keeps answers;
otherwise it is refused with the id of the first one's generation.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from uuid import UUID

from django.conf import settings
from msgspec.structs import replace
from prometheus_client import Counter

from billing.rate_limits import RateRule, render_headers
from catalog.dialects.shared.raw import Piece
from config.api.errors import GatewayError, Unavailable
from config.api.idempotency import IdempotencyKeyReused
from config.database.driver import Rejected
from config.peppers import REQUEST, oldest_pepper
from config.server.bodies import ClientGone
from inference.admission.decide import AdmissionRequest
from inference.exchange.gateway import Exchange
from inference.exchange.tap import Tap
from inference.faces.connection import RETRY_COUNT, Connection
from inference.ids import new_generation_id
from inference.models import Generation
from inference.repeats.answers import KeptAnswers, KeptResponse, KeptRow
from inference.repeats.cache_use import CacheUse
from inference.repeats.key_uses import KeyUse, KeyUses, may_still_be_admitted
from inference.repeats.recorder import KEPT_HEADERS, Recorder
from inference.repeats.retries import RetryMemory

logger = logging.getLogger(__name__)

_REPEATS: Final = Counter(
    "causeway_repeated_requests_total",
    "Requests that repeat an earlier one, by what they got: replayed, refused, or told as a retry.",
    ("answer",),
)
_REPLAYED: Final = (b"idempotency-replayed", b"true")
_JSON: Final = [(b"content-type", b"application/json")]
_FREEING: Final = (Generation.Status.FAILED, Generation.Status.CANCELLED)

Run = Callable[[AdmissionRequest, Sequence[Tap]], Awaitable[None]]
Judge = Callable[[], Awaitable[tuple[Sequence[RateRule], bool]]]


class FirstRequest(Tap):
    """The first request with an idempotency key, from its key's use on.

    Its answer is kept if the workspace keeps answers. The work then goes on to its end when the
    caller leaves, because a client that has lost its connection sends the request again.
    """

    def __init__(
        self,
        uses: KeyUses,
        answers: KeptAnswers,
        connection: Connection,
        use: KeyUse,
        organization_id: UUID,
    ) -> None:
        self.generation_id = use.generation_id
        self._organization_id = organization_id
        self._uses = uses
        self._answers = answers
        self._connection = connection
        self._since = time.monotonic()
        self._exchange: Exchange | None = None
        self._keeper: Keeper | None = None

    def admitted(self, exchange: Exchange) -> None:
        """Notes the exchange; raises :class:`Unavailable` if its admission took too long.

        Another request may have the key by now, so nothing may be sent to an upstream.
        """
        self._exchange = exchange
        if not may_still_be_admitted(self._since):
            exchange.settle(asyncio.CancelledError())
            raise Unavailable
        if exchange.admission.keeping.is_allowed:
            self._keeper = Keeper(self._answers, self._connection, exchange)
            self.outlives_caller = True

    async def reply(self, pieces: list[Piece] | None) -> None:
        """Keeps the answer, if the workspace keeps answers."""
        if self._keeper is None:
            return
        if pieces is None:
            await self._keeper.keep_stream()
        else:
            await self._keeper.keep_reply(pieces)

    async def finish(self) -> None:
        """Ends the use of the key; frees it if the request failed without a charge."""
        try:
            if self._exchange is None or _is_free(self._exchange):
                await self._uses.free(self._organization_id, self.generation_id)
            else:
                await self._uses.end(self._organization_id, self.generation_id)
        except (GatewayError, Rejected) as exc:
            # What has become of the request then follows from its generation alone.
            if not isinstance(exc, Unavailable):
                logger.warning("an idempotency key is not ended: %s", type(exc).__name__)


def _is_free(exchange: Exchange) -> bool:
    """Returns whether a request failed, or was cancelled, without a charge."""
    outcome = exchange.outcome
    return outcome is None or (outcome.usage is None and outcome.status in _FREEING)


class Keeper:
    """Copies the answer of an exchange while it is sent, and keeps it when it is whole."""

    def __init__(self, answers: KeptAnswers, connection: Connection, exchange: Exchange) -> None:
        self._answers = answers
        self._connection = connection
        self._exchange = exchange
        self._recorder = Recorder(exchange.occupancy, connection.comments)
        if exchange.admission.request.stream:
            connection.divert(self._recorder.attach)

    async def keep_reply(self, reply: list[Piece]) -> None:
        """Keeps a whole answer, before it is sent."""
        if sum(map(len, reply)) <= settings.KEPT_ANSWER_BYTES:
            own = self._connection.common_headers()
            headers = [*_JSON, *(pair for pair in own if pair[0] in KEPT_HEADERS)]
            await self._keep(KeptResponse(memoryview(b"".join(reply)), headers))

    async def keep_stream(self) -> None:
        """Keeps a stream, after its last event; none that failed without a charge."""
        answer = self._recorder.answer()
        if answer is not None and not _is_free(self._exchange):
            await self._keep(answer)

    async def _keep(self, answer: KeptResponse) -> None:
        if not self._exchange.admission.keeping.is_allowed:
            return  # its rules have changed between two attempts
        await self._answers.keep(
            answer,
            self._exchange.organization_id,
            self._exchange.generation_id,
            self._connection.workload,
            seconds=settings.IDEMPOTENCY_TTL,
        )


class Repeats:
    """Recognizes what a worker's requests repeat."""

    def __init__(self) -> None:
        self._uses = KeyUses()
        self._answers = KeptAnswers()
        self._retries = RetryMemory()

    async def close(self) -> None:
        await self._uses.close()
        await self._answers.close()

    def show_figures(self) -> None:
        """Sets the gauges of the queues of statements."""
        self._uses.show_figures()
        self._answers.show_figures()

    async def serve_once(
        self,
        connection: Connection,
        entry: AdmissionRequest,
        run: Run,
        judge: Judge,
    ) -> None:
        """Runs the first request with a key, and answers or refuses any other.

        Another one may have waited for a long time, so it is judged anew with ``judge``, and counts
        for the rate limits.
        Raises :class:`IdempotencyKeyReused` for another request with the key, and the refusals of
        :meth:`KeyUse.refusal`. A request that joined one that failed for free is run itself.
        """
        fingerprint, key = _fingerprint(connection, entry), connection.caller
        while True:
            use = await self._uses.begin(
                key.organization_id,
                key.key_id,
                connection.path,
                connection.idempotency_key(),
                fingerprint,
                new_generation_id(),
            )
            if use.state == "begun":
                break
            if use.state == "different":
                raise IdempotencyKeyReused
            if use.state == "running" and use.is_kept:
                await self._join(connection, use)
                continue
            rules, is_given = await judge()
            await self._count(connection, key.organization_id, rules)
            await self._replay(connection, use, key.organization_id, is_given=is_given)
            return
        first = FirstRequest(self._uses, self._answers, connection, use, key.organization_id)
        try:
            await run(replace(entry, generation_id=use.generation_id), (first,))
        finally:
            await first.finish()

    def use_cache(self, connection: Connection, exchange: Exchange) -> CacheUse:
        """Returns the use of the response cache by an exchange."""
        return CacheUse(self._answers, connection, exchange)

    def note_retry(self, connection: Connection, exchange: Exchange) -> None:
        """Tells the exchange of a request that an SDK has sent before, which one it was."""
        # How often the SDK says that it has sent the request before.
        count = connection.header(RETRY_COUNT) or ""
        authority = exchange.admission.authority
        marks = (authority.key_id, connection.path, connection.body_hash)
        exchange.admission.retry_of = self._retries.note(
            authority.organization_id, marks, count, exchange.generation_id
        )
        if exchange.admission.retry_of is not None:
            _REPEATS.labels("retry").inc()

    async def _join(self, connection: Connection, use: KeyUse) -> None:
        """Waits until the first request with a key has ended; a caller who leaves ends the wait."""
        try:
            connection.watch_caller()
            async with asyncio.timeout(settings.HOLD_TIMEOUT):
                await self._uses.wait(use.generation_id)
        except TimeoutError:
            raise use.refusal() from None
        except asyncio.CancelledError:
            if not connection.unwatch_caller():
                raise
            raise (use.refusal() if connection.is_late else ClientGone()) from None
        finally:
            connection.unwatch_caller()

    async def _count(
        self, connection: Connection, organization_id: UUID, rules: Sequence[RateRule]
    ) -> None:
        """Counts a repeat for the rate limits of all models; raises :class:`RateLimited`."""
        if not rules:
            return
        is_counted, budgets = await self._uses.count(organization_id, rules)
        if not is_counted:
            budgets.require_rates(rules, 0)
            # Its minute has ended meanwhile, or a meter is missing.
            raise Unavailable
        connection.rate_headers = render_headers(rules, budgets.readings, budgets.now)

    async def _replay(
        self, connection: Connection, use: KeyUse, organization_id: UUID, *, is_given: bool
    ) -> None:
        """Sends the kept answer; raises the refusal of a use without one that may be given."""
        answer: KeptResponse | None = None
        if is_given and use.answer_id is not None and use.state == "answered":
            row = KeptRow(use.answer_id, use.size, use.generation_id)
            answer = await self._answers.read(organization_id, row, connection.workload)
        if answer is None:
            _REPEATS.labels("refused").inc()
            raise use.refusal()
        _REPEATS.labels("replayed").inc()
        connection.generation_id, connection.left_out = use.generation_id, ()
        await connection.respond_pieces(200, [answer.body], [*answer.headers, _REPLAYED])


def _fingerprint(connection: Connection, entry: AdmissionRequest) -> bytes:
    """Returns what two requests with one key must have in common, beside key and route."""
    common = f"{connection.digest.hex()} {entry.region or ''}"
    return bytes.fromhex(oldest_pepper(REQUEST).digest(common))
