"""Keeps the answer of one exchange for requests that repeat it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final
from uuid import UUID

from django.conf import settings

from catalog.dialects.shared.raw import Piece
from config.api.errors import GatewayError, Unavailable
from config.database.driver import Rejected
from inference.exchange.gateway import Exchange
from inference.exchange.tap import Tap
from inference.faces.connection import Connection
from inference.models import Generation
from inference.repeats.answers import KeptAnswers, KeptResponse
from inference.repeats.key_uses import KeyUse, KeyUses, may_still_be_admitted
from inference.repeats.recorder import KEPT_HEADERS, Recorder

logger = logging.getLogger(__name__)

_JSON: Final = [(b"content-type", b"application/json")]
_FREEING: Final = (Generation.Status.FAILED, Generation.Status.CANCELLED)


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
        await self._answers.keep(
            answer,
            self._exchange.organization_id,
            self._exchange.generation_id,
            self._connection.workload,
            seconds=settings.IDEMPOTENCY_TTL,
        )
