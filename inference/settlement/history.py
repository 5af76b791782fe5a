"""Notices that the database has lost what this worker had committed, and settles it again.

A lock that was stolen, an asynchronous standby that was promoted and a backup that was restored
under running workers take acknowledged rows away. Nobody admits then until an operator has accepted
the loss, or the rows are back.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from config.clocks.clock import clock
from config.database.driver import Rejected
from config.server.readiness import Readiness, readiness
from config.sql import load_statement
from inference.ids import id_range
from inference.models import HistoryLoss
from inference.settlement.settle import SETTLE
from inference.store import CommitMemory, Committed, DataPlaneConnection, run_in_thread

logger = logging.getLogger(__name__)

FIND_UNSTORED: Final = load_statement("inference", "find_unstored")
READMIT: Final = load_statement("inference", "readmit")

# Ids of generations that one log line names.
_NAMED: Final = 20
_encode = msgspec.json.Encoder().encode


class Beat(NamedTuple):
    """The row that ``beat.sql`` returns."""

    read_at: datetime
    server: str
    timeline: int
    number: int | None
    beat_at: datetime | None
    written: int | None
    is_open: bool
    is_accepted: bool | None


class History:
    """Compares what a worker has committed with what its database has, at every heartbeat.

    After each start of the server it also looks for the generations that it remembers, because less
    than a heartbeat may be lost.
    """

    def __init__(
        self,
        memory: CommitMemory,
        find_running: Callable[[], Collection[str]],
        readiness: Readiness = readiness,
    ) -> None:
        """Stores the memory; ``find_running`` returns the ids of the generations that run.

        ``readiness`` is told whether history is lost.
        """
        self.readiness = readiness
        self.worker = f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"
        self._memory, self._find_running = memory, find_running
        self._number = 0
        # The last heartbeat that was acknowledged, and the first one since the last loss.
        self._confirmed = 0
        self._confirmed_at = self._began_at = clock.now()
        # The highest timeline of each cluster.
        self._timelines: dict[str, int] = {}
        self._server: str | None = None
        self._loss: HistoryLoss | None = None
        # What was lost for good, and accepted.
        self._gone: set[str] = set()

    def parameters(self) -> list[Any]:
        """Returns the parameters of the next heartbeat; it leaves the row while it tells a loss."""
        self._memory.forget_old()
        self._number += 1
        if self._loss is not None:
            return [self.worker, None, 0, self._loss.pk]
        return [self.worker, self._number, self._confirmed, None]

    async def follow(self, beat: Beat, connection: DataPlaneConnection) -> None:
        """Judges a heartbeat; raises the errors of the connection, and is then tried again."""
        cluster = beat.server.partition("/")[0]
        is_older = beat.timeline < self._timelines.get(cluster, 0)
        if self._confirmed and (beat.number or 0) < self._confirmed:
            # The row is as old as the database, and began with the worker if it is gone.
            since: datetime | None = beat.beat_at or self._began_at
        elif is_older or (
            self._confirmed
            and (self._loss is not None or beat.server != self._server)
            and await self._find_unstored(connection)
        ):
            since = self._confirmed_at
        else:
            since = None
        if self._loss is None and since is not None:
            self._begin(since)
        elif self._loss is not None and (beat.is_accepted or since is None):
            # What ends meanwhile is found by the next heartbeat.
            if not await self._settle_again(connection):
                if beat.is_accepted is False:
                    # It was told to this database while its history came back.
                    told = HistoryLoss.objects.filter(pk=self._loss.pk, accepted_at=None)
                    await run_in_thread(told.delete)
                self._loss, self._confirmed, self._memory.is_kept = None, 0, False
                self._timelines[cluster] = beat.timeline
        elif self._loss is None and beat.written is not None:
            if not self._confirmed:
                self._began_at = beat.read_at
            self._confirmed, self._confirmed_at = beat.written, beat.read_at
            self._timelines[cluster] = beat.timeline
        if self._loss is not None and beat.is_accepted is None:
            await run_in_thread(HistoryLoss.objects.record, self._loss)
        self._server = beat.server
        if beat.is_open and not self.readiness.is_history_lost:
            logger.error("the database has lost history: nothing is admitted until it is accepted")
        self.readiness.is_history_lost = beat.is_open or self._loss is not None

    def _begin(self, since: datetime) -> None:
        until = max(self._confirmed_at, self._memory.newest or self._confirmed_at)
        self._loss = HistoryLoss(id=uuid.uuid4(), worker=self.worker, since=since, until=until)
        self.readiness.is_history_lost = self._memory.is_kept = True
        logger.error(
            "the database has lost what this worker committed since %s, until %s: nothing is "
            "admitted until an operator runs manage.py accept_history, or the rows are back",
            since,
            until,
        )

    async def _find_unstored(self, connection: DataPlaneConnection) -> set[str]:
        settled = self._memory.read(Committed.SETTLED).keys()
        ids = (settled | set(self._find_running())) - self._gone
        parameters = [list(ids), list(settled), *id_range(ids)]
        return {key for (key,) in await connection.execute(FIND_UNSTORED, parameters)}

    async def _settle_again(self, connection: DataPlaneConnection) -> bool:
        """Stores the lost generations that this worker remembers, and their ends.

        Returns whether there were any.
        """
        unstored = await self._find_unstored(connection)
        if not unstored:
            return False
        admitted, moved, ends = map(self._memory.read, Committed)
        for key in sorted(unstored):
            end = ends.get(key)
            with suppress(Rejected):
                if key in admitted:
                    row = {**admitted[key], **moved.get(key, {})}
                    if end is not None:
                        # What it cost is known, so no more has to be held.
                        row["hold_nano"] = min(row["hold_nano"], end["cost_nano"])
                    await connection.execute(READMIT, [_encode(row).decode(), key])
                if end is not None:
                    await connection.execute(SETTLE, [_encode([end]).decode(), key, key])
        found = await self._find_unstored(connection)
        # One that has ended in between runs now, and its end is stored the next time.
        gone = found & unstored - (self._memory.read(Committed.SETTLED).keys() - ends.keys())
        self._gone |= gone
        logger.warning(
            "history is accepted or back: %d generations stored again, %d lost for good (%s)",
            len(unstored - gone),
            len(gone),
            ", ".join(sorted(gone)[:_NAMED]),
        )
        return True
