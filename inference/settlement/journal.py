"""What a worker tells the others every second or sooner: how far it has come, and how endpoints do.

So a killed process leaves nothing unbilled for long, and no worker has to find out by itself what
another has seen.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from config.api.errors import Unavailable
from config.sql import load_statement
from inference.routing.health import HealthTable, oldest_bucket
from inference.store import DataPlaneConnection, Rejected

logger = logging.getLogger(__name__)

# Once a second, or sooner where a stream is quick: what a process delivers between two beats is
# what its death may leave unbilled. The pause bounds the statements where many streams are quick.
_INTERVAL_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.05
JOURNAL: Final = load_statement("inference", "journal")
EXCHANGE_HEALTH: Final = load_statement("inference", "exchange_health")
_encode = msgspec.json.Encoder().encode


class Progress(msgspec.Struct, frozen=True):
    """How far one generation has come: tokens as estimated, the completion's as delivered."""

    generation_id: str
    prompt_tokens: int
    completion_tokens: int


class Heartbeat:
    """Writes the beats of a worker in one statement, and exchanges its health health in another."""

    def __init__(self, beats: Callable[[bool], Sequence[Progress]], health: HealthTable) -> None:
        """Takes what returns the beats of all that is under way, or of what hurries alone."""
        self._beats = beats
        self._health = health
        self._store = DataPlaneConnection()
        self._hurried = asyncio.Event()
        self._told_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def flush_now(self) -> None:
        """Asks for a beat now: a stream has delivered much since the last one."""
        self._hurried.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._store.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            left = self._told_at + _INTERVAL_SECONDS - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(left, 0)):
                    await self._hurried.wait()
            self._hurried.clear()
            is_due = time.monotonic() >= self._told_at + _INTERVAL_SECONDS
            if is_due:
                self._told_at = time.monotonic()
            try:
                if beats := self._beats(not is_due):
                    await self._store.execute(JOURNAL, [_encode(beats).decode()])
                if is_due:
                    await self._exchange()
            except (Unavailable, Rejected) as exc:
                # The next beat says all that this one would have said.
                logger.error("nothing is journalled: %s", type(exc).__name__)
                await asyncio.sleep(_INTERVAL_SECONDS)

    async def _exchange(self) -> None:
        now = time.time()
        rows = _encode(self._health.outgoing()).decode()
        since = oldest_bucket(now)
        self._health.merge(await self._store.execute(EXCHANGE_HEALTH, [rows, since]), now)
