"""Counts the verdicts of shadows in memory, and adds them to the database once a second."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from config.api.errors import Unavailable
from config.database.driver import Rejected
from config.sql import load_statement
from inference.store import DataPlaneConnection

logger = logging.getLogger(__name__)

COUNT_SHADOWS: Final = load_statement("inference", "count_shadows")
_SECONDS: Final = 1.0
_HOUR: Final = 3600
# Counts that a worker keeps while the database does not take them.
_MOST: Final = 10_000
_encode = msgspec.json.Encoder().encode


class Counted(NamedTuple):
    """What the counts are kept by; ``hour`` is its beginning in Unix seconds."""

    shadow_id: UUID
    key_id: UUID
    hour: int
    reason: str


class ShadowCounts:
    """The counts of a worker that are not stored yet.

    A worker that is killed loses those of its last second.
    """

    def __init__(self) -> None:
        self._connection = DataPlaneConnection()
        self._counts: Counter[Counted] = Counter()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_storing())

    async def close(self) -> None:
        """Stores what is left."""
        # A statement that runs is not cancelled: its counts would be stored twice.
        self._is_closing.set()
        if self._task is not None:
            await self._task
        with suppress(Unavailable, Rejected, OSError):
            await self.store()
        await self._connection.close()

    def count(self, key_id: UUID, at: int, verdicts: Iterable[tuple[UUID, str]]) -> None:
        """Counts the verdicts about a request that was stored at an instant."""
        hour = at - at % _HOUR
        for shadow_id, reason in verdicts:
            entry = Counted(shadow_id, key_id, hour, reason)
            if entry in self._counts or len(self._counts) < _MOST:
                self._counts[entry] += 1

    async def store(self) -> None:
        """Adds the counts to the database; keeps them after an error."""
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        try:
            entries = [(*entry, requests) for entry, requests in counts.items()]
            await self._connection.execute(COUNT_SHADOWS, [_encode(entries).decode()])
        except BaseException:
            self._counts.update(counts)
            raise

    async def _keep_storing(self) -> None:
        while not self._is_closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_closing.wait(), _SECONDS)
            try:
                await self.store()
            except (Unavailable, Rejected, OSError) as exc:
                logger.warning("the counts of shadows are stored later: %s", exc)
