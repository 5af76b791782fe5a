"""Kept answers: encrypted, of bounded size, for a limited time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from django.conf import settings

from config.api.errors import GatewayError, Unavailable
from config.database.driver import Rejected
from config.secrets import DecryptionFailed, seal_bytes, unseal_bytes
from config.server.batching.waits import Blocked
from config.sql import load_statement
from inference.exchange.workload import Workload
from inference.repeats.connections import Rows, SharedConnections

logger = logging.getLogger(__name__)

KEEP: Final = load_statement("inference", "keep_answer")
READ: Final = load_statement("inference", "read_kept_answer")
FIND: Final = load_statement("inference", "find_cached_answer")
# While an answer is sealed and stored there are so many further copies of it, and while it is read
# and renewed so many in all.
_SEALING_COPIES: Final = 3
_READING_COPIES: Final = 3

# Each answer counts as if it had this size at least, which bounds the number of rows.
_LEAST_BYTES: Final = 16_384


class KeptResponse(msgspec.Struct, frozen=True):
    """A response with the status 200: the headers that belong to its body, and the body.

    An entry of the response cache has the body that the exchange rendered; each caller gets it in
    the format of its interface. A native one has that format already.
    """

    body: memoryview
    headers: list[tuple[bytes, bytes]] = []
    streamed: bool = False
    is_native: bool = False


class KeptRow(NamedTuple):
    """Where the answer of a generation is kept, and its size."""

    answer_id: int
    size: int
    generation_id: str


class CachedAnswer(NamedTuple):
    """An entry of the response cache: a row of ``find_cached_answer.sql``; times in seconds."""

    answer_id: int
    size: int
    generation_id: str
    endpoint_id: UUID
    age: int
    seconds_left: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeptResponse).decode


def _leave(answer: KeptResponse) -> KeptResponse:
    return answer


class KeptAnswers:
    """Keeps and finds answers, on connections of its own: they may be large.

    What an answer takes in memory is counted before it is there.
    """

    def __init__(self) -> None:
        self._connections = SharedConnections("kept_answers")
        # A batch keeps its rows until it ends.
        self._reads = SharedConnections("kept_answer_reads", limit=1)

    async def close(self) -> None:
        await self._connections.close()
        await self._reads.close()

    def show_figures(self) -> None:
        """Sets the gauges of the queues of statements."""
        self._connections.show_figures()
        self._reads.show_figures()

    async def keep(
        self,
        answer: KeptResponse,
        organization_id: UUID,
        generation_id: str,
        workload: Workload,
        *,
        seconds: int,
        cache_key: bytes | None = None,
        endpoint_id: UUID | None = None,
    ) -> bool:
        """Keeps an answer and returns whether it is kept; a failure is logged."""
        associated = _associate(organization_id, generation_id, cache_key)
        copies = _SEALING_COPIES * len(answer.body)
        try:
            workload.reserve(copies)
        except GatewayError:
            return False
        try:
            sealed = await workload.run(len(answer.body), _seal, answer, associated)
            if len(sealed) > settings.KEPT_ANSWER_BYTES:
                return False
            await self._connections.execute(
                organization_id,
                KEEP,
                (
                    organization_id,
                    generation_id,
                    cache_key,
                    endpoint_id,
                    sealed,
                    max(len(sealed), _LEAST_BYTES),
                    float(seconds),
                    settings.ORGANIZATION_KEPT_BYTES,
                ),
            )
        except (Blocked, Unavailable, Rejected) as exc:
            if not isinstance(exc, Unavailable):
                logger.warning("the answer is not kept: %s", type(exc).__name__)
            return False
        finally:
            workload.release(copies)
        return True

    async def read(
        self,
        organization_id: UUID,
        row: KeptRow | CachedAnswer,
        workload: Workload,
        *,
        cache_key: bytes | None = None,
        renew: Callable[[KeptResponse], KeptResponse] = _leave,
    ) -> KeptResponse | None:
        """Returns an answer after ``renew``, if the row still has it and it can be decrypted.

        Raises the refusals of :meth:`Workload.reserve`, before anything is read. The bytes of the
        answer stay counted until the end of the request.
        """
        copies = _READING_COPIES * row.size
        workload.reserve(copies)
        answer = None
        try:
            found = await self._reads.fetch(
                organization_id, READ, (row.answer_id, organization_id, row.generation_id)
            )
            if found:
                associated = _associate(organization_id, row.generation_id, cache_key)
                answer = await workload.run(row.size, _open, found, associated, renew)
        finally:
            workload.release(copies - (0 if answer is None else row.size))
        return answer

    async def find(self, organization_id: UUID, cache_key: bytes) -> CachedAnswer | None:
        """Returns the entry of the response cache with this key, if there is one."""
        rows = await self._connections.execute(organization_id, FIND, (organization_id, cache_key))
        return CachedAnswer(*rows[0]) if rows else None


def _associate(organization_id: UUID, generation_id: str, cache_key: bytes | None) -> str:
    """Returns what binds a ciphertext to its row."""
    return f"answer:{organization_id}:{generation_id}:{(cache_key or b'').hex()}"


def _seal(answer: KeptResponse, associated: str) -> bytes:
    return seal_bytes(_encode(answer), associated=associated)


def _open(
    found: Rows, associated: str, renew: Callable[[KeptResponse], KeptResponse]
) -> KeptResponse | None:
    try:
        # Nothing refers to the encrypted answer while the other is renewed.
        return renew(_decode(unseal_bytes(found.pop()[0], associated=associated)))
    except (DecryptionFailed, msgspec.DecodeError) as exc:
        logger.warning("a kept answer cannot be read: %s", type(exc).__name__)
        return None
