"""Renewal: gives the keys that an older pepper found a digest by the first pepper."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from config.api.errors import Unavailable
from config.secrets import KeyDigests
from config.server.batching.batcher import Batcher
from config.server.batching.waits import Blocked
from config.sql import load_statement
from inference.store import DataPlaneConnection

logger = logging.getLogger(__name__)

RENEW_DIGESTS: Final = load_statement("inference", "renew_digests")

# Nobody waits for a renewal, so it collects those of many keys.
_PAUSE_SECONDS: Final = 0.2

_encode: Final = msgspec.json.encode


class RenewedDigest(msgspec.Struct, frozen=True):
    """A digest of a key by the first pepper; the columns of a batch of ``renew_digests.sql``.

    ``key_digest`` is the public hash by which the key was found.
    """

    digest: str
    key_digest: str
    pepper: str


class DigestRenewal:
    """Stores digests by the first pepper in batches, which no request waits for.

    A digest that was not stored is submitted again when its key is looked up again.
    """

    def __init__(self) -> None:
        self._connection = DataPlaneConnection()
        self._batcher: Batcher[RenewedDigest, None] = Batcher(self._store, pause=_PAUSE_SECONDS)

    def submit(self, key_digest: str, digests: KeyDigests) -> None:
        """Queues the first digest of a key; never waits."""
        renewed = RenewedDigest(digests[0], key_digest, digests.pepper_ids[0])
        self._batcher.submit(renewed).add_done_callback(_report)

    async def close(self) -> None:
        await self._batcher.drain()
        await self._connection.close()

    async def _store(self, batch: list[RenewedDigest]) -> Sequence[BaseException | None]:
        try:
            await self._execute(batch)
        except Blocked:
            # One of the digests is locked. The others are stored without it.
            return await self._store_each(batch)
        return [None] * len(batch)

    async def _store_each(self, batch: list[RenewedDigest]) -> list[BaseException | None]:
        results: list[BaseException | None] = []
        for renewed in batch:
            try:
                await self._execute([renewed])
            except Unavailable as exc:
                results.append(exc)
            else:
                results.append(None)
        return results

    async def _execute(self, batch: list[RenewedDigest]) -> None:
        await self._connection.execute(RENEW_DIGESTS, [_encode(batch).decode()])


def _report(stored: asyncio.Future[None]) -> None:
    if not stored.cancelled() and (error := stored.exception()) is not None:
        logger.warning("a key's digest by the first pepper is not stored yet: %s", error)
