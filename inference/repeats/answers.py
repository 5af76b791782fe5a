"""Kept answers: encrypted, of bounded size, for a limited time."""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

import msgspec
from django.conf import settings

from config.api.errors import Unavailable
from config.database.driver import Rejected
from config.secrets import DecryptionFailed, seal_bytes, unseal_bytes
from config.server.batching.waits import Blocked
from config.sql import load_statement
from inference.exchange.workload import Workload
from inference.repeats.connections import SharedConnections

logger = logging.getLogger(__name__)

KEEP: Final = load_statement("inference", "keep_answer")
READ: Final = load_statement("inference", "read_kept_answer")
FIND: Final = load_statement("inference", "find_cached_answer")

# Each answer counts as if it had this size at least, which bounds the number of rows.
_LEAST_BYTES: Final = 16_384


class Answer(msgspec.Struct, frozen=True):
    """A response with the status 200: the headers that belong to its body, and the body.

    An entry of the response cache has the body that the exchange rendered; each caller gets it in
    the format of its interface. A native one has that format already.
    """

    body: bytes
    headers: list[tuple[bytes, bytes]] = []
    streamed: bool = False
    is_native: bool = False


class CachedAnswer(msgspec.Struct, frozen=True):
    """An entry of the response cache: a row of ``find_cached_answer.sql``; times in seconds."""

    generation_id: str
    endpoint_id: UUID
    sealed: bytes
    age: int
    seconds_left: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Answer).decode


class KeptAnswers:
    """Keeps and finds answers, on connections of its own: they may be large."""

    def __init__(self) -> None:
        self._connections = SharedConnections("kept_answers")

    async def close(self) -> None:
        await self._connections.close()

    def show_figures(self) -> None:
        """Sets the gauge of the queue of statements."""
        self._connections.show_figures()

    async def keep(
        self,
        answer: Answer,
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
        sealed = await workload.run(len(answer.body), _seal, answer, associated)
        if len(sealed) > settings.KEPT_ANSWER_BYTES:
            return False
        try:
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
        return True

    async def read(
        self, organization_id: UUID, generation_id: str, workload: Workload
    ) -> Answer | None:
        """Returns the answer that belongs to an idempotency key, if it can be read."""
        rows = await self._connections.execute(
            organization_id, READ, (organization_id, generation_id)
        )
        if not rows:
            return None
        associated = _associate(organization_id, generation_id, None)
        return await workload.run(len(rows[0][0]), _unseal, rows[0][0], associated)

    async def find(self, organization_id: UUID, cache_key: bytes) -> CachedAnswer | None:
        """Returns the entry of the response cache with this key, if there is one."""
        rows = await self._connections.execute(organization_id, FIND, (organization_id, cache_key))
        return CachedAnswer(*rows[0]) if rows else None

    async def open(
        self, organization_id: UUID, cache_key: bytes, cached: CachedAnswer, workload: Workload
    ) -> Answer | None:
        """Returns the answer of an entry, if it can be decrypted."""
        associated = _associate(organization_id, cached.generation_id, cache_key)
        return await workload.run(len(cached.sealed), _unseal, cached.sealed, associated)


def _associate(organization_id: UUID, generation_id: str, cache_key: bytes | None) -> str:
    """Returns what binds a ciphertext to its row."""
    return f"answer:{organization_id}:{generation_id}:{(cache_key or b'').hex()}"


def _seal(answer: Answer, associated: str) -> bytes:
    return seal_bytes(_encode(answer), associated=associated)


def _unseal(sealed: bytes, associated: str) -> Answer | None:
    try:
        return _decode(unseal_bytes(sealed, associated=associated))
    except (DecryptionFailed, msgspec.DecodeError) as exc:
        logger.warning("a kept answer cannot be read: %s", type(exc).__name__)
        return None
