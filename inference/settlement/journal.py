"""The heartbeat of a worker: journals running generations and shares the health of endpoints.

Journals bound the output that a killed process leaves unbilled. By shared health a worker learns of
failures that another worker has seen.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from config.api.errors import Unavailable
from config.clocks.clock import clock
from config.clocks.report import clock_report
from config.database.driver import Rejected
from config.database.outages import outages
from config.database.pool import find_pool
from config.server.batching.waits import Blocked
from config.server.readiness import readiness
from config.sql import load_statement
from inference.routing.health import HealthTable
from inference.routing.pacing import oldest_pace
from inference.settlement.health_exchange import HealthExchange
from inference.settlement.history import Beat, History
from inference.store import CommitMemory, DataPlaneConnection

logger = logging.getLogger(__name__)

JOURNAL: Final = load_statement("inference", "journal")
BEAT: Final = load_statement("inference", "beat")
EXCHANGE_PACE: Final = load_statement("inference", "exchange_pace")
MARK_REFUSED: Final = load_statement("inference", "mark_refused")
CLEAR_REFUSED: Final = load_statement("inference", "clear_refused")
MARK_RESTS: Final = load_statement("inference", "mark_rests")
CLEAR_RESTS: Final = load_statement("inference", "clear_rests")
READ_REFUSED: Final = load_statement("inference", "read_refused")

# The pause bounds the number of statements when many streams are fast.
_PAUSE_SECONDS: Final = 0.05
# A database that was away is asked again soon: nothing is admitted until it has answered.
_RETRY_SECONDS: Final = 0.3
# The generations of one statement. A settlement deletes its journal, and waits for a statement that
# has locked it: short ones hold it up for milliseconds, whatever number of requests is running.
_GENERATIONS: Final = 128
# Heartbeats come every second. The time between two that are further apart than this is an outage
# of the database, during which no worker could write.
GAP_SECONDS: Final = 10.0
_encode = msgspec.json.Encoder().encode


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The estimated tokens of a running generation: the prompt's and the delivered completion's.

    Both are in the range of their columns: another number would stop the heartbeat of all others.
    ``units`` are what else was delivered: they join those that the request says.
    """

    generation_id: str
    prompt_tokens: int
    completion_tokens: int
    units: dict[str, Any] | None = None


class Heartbeat:
    """Journals the progress of a worker, and exchanges health and paces, each with a statement.

    Output since the last heartbeat stays unbilled if the process dies. A heartbeat therefore runs
    every ``interval_seconds``, and earlier when a stream has delivered much.
    """

    interval_seconds = 1.0

    def __init__(
        self,
        collect_progress: Callable[[bool], Sequence[Progress]],
        health: HealthTable,
        forget_copies: Callable[[], None],
        history: History | None = None,
    ) -> None:
        """Stores the source of progress.

        ``collect_progress(is_urgent)`` returns the progress of all running generations, or only of
        those that have delivered much since they were journalled. ``forget_copies`` is called when
        the database may have been restored: versions of an earlier state come again. ``history``
        notices what it has lost.
        """
        self._history = history or History(CommitMemory(), list)
        self._collect_progress = collect_progress
        self._forget_copies = forget_copies
        self._health = health
        # The server of the last heartbeat, with its database and its start.
        self._server: str | None = None
        self._connection = DataPlaneConnection()
        self._is_urgent = asyncio.Event()
        # Done once a heartbeat has tried to journal all progress; ``None`` if nobody waits for it.
        self._flushed: asyncio.Future[None] | None = None
        self._last_full = 0.0
        self._task: asyncio.Task[None] | None = None
        # A connection of its own: a slow exchange delays no journal.
        self._health_connection = DataPlaneConnection()
        self._health_exchange = HealthExchange(
            health, self._health_connection, os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        )
        self._sharing: asyncio.Task[None] | None = None

    def flush_now(self) -> None:
        """Asks for a heartbeat now, because a stream has delivered much since the last one."""
        self._is_urgent.set()

    async def flush(self) -> None:
        """Waits until the progress of now is journalled; for a second at most.

        An outage of the database must not hold up a stream for longer.
        """
        if self._flushed is None:
            self._flushed = asyncio.get_running_loop().create_future()
        self._is_urgent.set()
        await asyncio.wait([self._flushed], timeout=self.interval_seconds)

    async def open(self) -> None:
        """Beats before a request is admitted, once a second, and after each new connection."""
        with suppress(Unavailable, Rejected):
            await self._beat()
        find_pool().on_open = self._beat_now
        self.start()

    def _beat_now(self) -> None:
        self._last_full = 0.0
        self._is_urgent.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._sharing = asyncio.create_task(self._share_health())

    async def close(self) -> None:
        if tasks := [task for task in (self._task, self._sharing) if task is not None]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await self._health_exchange.close()
        await self._health_connection.close()
        await self._connection.close()

    async def _share_health(self) -> None:
        """Keeps the health of endpoints up to date, on a connection of its own."""
        while True:
            await asyncio.sleep(self._health_exchange.pause)
            try:
                await self._health_exchange.run_once()
            except (Unavailable, Rejected):
                # The heartbeat reports the outage.
                await asyncio.sleep(self.interval_seconds)
            except Exception:
                logger.exception("the health of endpoints is not shared; the next exchange tries")
                await asyncio.sleep(self.interval_seconds)

    async def _run(self) -> None:
        """Runs a full heartbeat every second, and journals urgent progress in between."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            left = self._last_full + self.interval_seconds - time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(left, 0)):
                    await self._is_urgent.wait()
            self._is_urgent.clear()
            flushed, self._flushed = self._flushed, None
            is_due = time.monotonic() >= self._last_full + self.interval_seconds
            if is_due:
                self._last_full = time.monotonic()
            try:
                await self._write_journals(self._collect_progress(not is_due))
                _end_wait(flushed)
                if is_due:
                    await self._beat()
                    await self._exchange_pace()
                    await self._exchange_refused()
                    readiness.is_database_available = True
            except Blocked:
                # Reported already. The database is there, and the next heartbeat tries again.
                readiness.is_database_available = True
            except Exception as exc:
                readiness.is_database_available = False
                # The next heartbeat writes everything that this one would have written.
                if isinstance(exc, Unavailable):
                    self._last_full = 0.0
                    await asyncio.sleep(_RETRY_SECONDS)
                else:
                    trace = None if isinstance(exc, Rejected) else exc
                    logger.error("the heartbeat failed: %s", exc, exc_info=trace)
                    await asyncio.sleep(self.interval_seconds)
            finally:
                _end_wait(flushed)
            outages.end_old()

    async def _write_journals(self, progress: Sequence[Progress]) -> None:
        """Journals the progress of generations, a bounded number in each transaction."""
        for start in range(0, len(progress), _GENERATIONS):
            part = progress[start : start + _GENERATIONS]
            await self._connection.execute(JOURNAL, [_encode(part).decode()])

    async def _beat(self) -> None:
        """Records that the database is reached, and reads its time."""
        sent = time.monotonic()
        parameters = [GAP_SECONDS, *self._history.parameters()]
        [row] = await self._connection.execute(BEAT, parameters)
        beat = Beat(*row)
        server = beat.server
        clock.observe(beat.read_at, sent)
        clock_report.update()
        before, self._server = self._server, server
        if before not in (None, server):
            logger.warning(
                "the database was restarted, restored or replaced (%s, before %s): keys, endpoints "
                "and the catalogue are read again",
                server,
                before,
            )
            self._forget_copies()
        await self._history.follow(beat, self._connection)

    async def _exchange_pace(self) -> None:
        pacer = self._health.pacer
        rows = _encode(pacer.outgoing()).decode()
        oldest = oldest_pace(clock.time())
        pacer.merge(await self._connection.execute(EXCHANGE_PACE, [rows, oldest]))

    async def _exchange_refused(self) -> None:
        refused = self._health.refused
        marks, cleared = sent = refused.outgoing()
        if marks:
            await self._connection.execute(MARK_REFUSED, [_encode(marks).decode()])
        if cleared:
            await self._connection.execute(CLEAR_REFUSED, [cleared])
        refused.merge(sent, await self._connection.execute(READ_REFUSED, []))
        own = refused.outgoing_own()
        if rests := [each for each in own.values() if each is not None]:
            await self._connection.execute(MARK_RESTS, [_encode(rests).decode()])
        if ended := [key for key, each in own.items() if each is None]:
            await self._connection.execute(CLEAR_RESTS, [ended])
        refused.note_written(own)


def _end_wait(flushed: asyncio.Future[None] | None) -> None:
    if flushed is not None and not flushed.done():
        flushed.set_result(None)
