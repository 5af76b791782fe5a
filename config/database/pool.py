"""The connections of the data plane: at most ``DATABASE_DATA_PLANE_CONNECTIONS`` in a worker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from django.conf import settings

from config.database.driver import Away, DriverConnection
from config.database.opening import open_connection

logger = logging.getLogger(__name__)

# A statement takes milliseconds. A wait this long shows that the pool does not move.
_WAIT_SECONDS: Final = 4.0
# Statements that may wait for a lock never use the last two connections.
_LEFT_TO_OTHERS: Final = 2
_LOG_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class PoolUse:
    """The connections of a pool now, and the waits for one since its start."""

    size: int
    open: int
    busy: int
    waiting: int
    waits: int
    waited_seconds: float


class _Waiter:
    __slots__ = ("is_apart", "turn")

    def __init__(self, turn: asyncio.Future[None], is_apart: bool) -> None:
        self.turn = turn
        self.is_apart = is_apart


class Pool:
    """Lends connections of one event loop, each for one statement.

    A connection opens when none is idle. Those who waited are served in order. Statements *apart*
    are of organizations whose rows are locked: they may have all connections but two, so that
    nobody else waits for these locks.
    """

    def __init__(self, size: int) -> None:
        # Is told of each connection that was opened: it may lead to another server.
        self.on_open: Callable[[], None] = lambda: None
        self._size = size
        self._most_apart = max(1, size - _LEFT_TO_OTHERS)
        self._idle: list[DriverConnection] = []
        self._busy = 0
        self._apart = 0
        self._waiters: deque[_Waiter] = deque()
        self._members: set[object] = set()
        self._waits = 0
        self._waited_seconds = 0.0
        self._logged_at = self._served_at = -_LOG_SECONDS

    def use(self) -> PoolUse:
        """Returns how the pool is used."""
        return PoolUse(
            size=self._size,
            open=self._busy + len(self._idle),
            busy=self._busy,
            waiting=len(self._waiters),
            waits=self._waits,
            waited_seconds=self._waited_seconds,
        )

    def join(self, member: object) -> None:
        """Keeps connections open until each member has left."""
        self._members.add(member)

    def leave(self, member: object) -> None:
        """Closes the connections when nobody uses the pool any more."""
        self._members.discard(member)
        if not self._members:
            self.drop_idle()

    async def take(
        self, last: DriverConnection | None, *, is_apart: bool, is_new: bool = False
    ) -> tuple[DriverConnection, bool]:
        """Returns a connection and whether it was opened now; :meth:`give_back` follows.

        ``last`` is preferred, because it has the settings and plans of its last statement. With
        ``is_new`` idle connections are closed: one of them was found dead, and others may be so.
        Raises :class:`Away` when the database cannot be reached or no connection becomes free.
        """
        # Whoever waits while a connection is free waits apart, and must not have it.
        if self._busy < self._size and self._may_have(is_apart):
            self._busy += 1
            self._apart += is_apart
        else:
            await self._wait(is_apart)
        if is_new:
            self.drop_idle()
        if self._idle:
            if last is None or last not in self._idle:
                return self._idle.pop(), False
            self._idle.remove(last)
            return last, False
        try:
            opened = await open_connection()
            self.on_open()
            return opened, True
        except OSError as exc:
            self.give_back(None, is_apart=is_apart)
            raise Away(str(exc)) from exc
        except BaseException:
            self.give_back(None, is_apart=is_apart)
            raise

    def give_back(self, connection: DriverConnection | None, *, is_apart: bool) -> None:
        """Ends the use of a connection; ``None`` stands for one that was terminated."""
        self._busy -= 1
        self._apart -= is_apart
        if connection is not None:
            self._served_at = time.monotonic()
            if self._members:
                self._idle.append(connection)
            else:
                connection.terminate()
        if self._waiters:
            self._wake()

    def drop_idle(self) -> None:
        """Closes the connections that nobody uses."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.terminate()

    def _may_have(self, is_apart: bool) -> bool:
        return not is_apart or self._apart < self._most_apart

    def _wake(self) -> None:
        """Gives the free connection to the first waiter that may have it."""
        for waiter in self._waiters:
            # One that has left is still here until its task runs.
            if waiter.turn.done():
                continue
            if self._busy < self._size and self._may_have(waiter.is_apart):
                self._waiters.remove(waiter)
                self._busy += 1
                self._apart += waiter.is_apart
                waiter.turn.set_result(None)
                return

    async def _wait(self, is_apart: bool) -> None:
        loop = asyncio.get_running_loop()
        waiter = _Waiter(loop.create_future(), is_apart)
        self._waiters.append(waiter)
        self._waits += 1
        started = time.monotonic()
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                await waiter.turn
        except BaseException as exc:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self.give_back(None, is_apart=is_apart)
            else:
                self._waiters.remove(waiter)
            if isinstance(exc, TimeoutError):
                self._report_full(started)
                raise Away("all connections are busy") from None
            raise
        finally:
            self._waited_seconds += time.monotonic() - started

    def _report_full(self, since: float) -> None:
        """Logs that a statement has waited since a time of the monotonic clock."""
        now = time.monotonic()
        # Where none has ended meanwhile, no statement is slow: the database is away.
        if self._served_at >= since and now >= self._logged_at + _LOG_SECONDS:
            self._logged_at = now
            logger.error(
                "a statement waited %.0f s for one of the data plane's %d connections, and %d "
                "others wait: look for slow statements and locks, or raise "
                "DATABASE_DATA_PLANE_CONNECTIONS",
                _WAIT_SECONDS,
                self._size,
                len(self._waiters),
            )


_pools: WeakKeyDictionary[asyncio.AbstractEventLoop, Pool] = WeakKeyDictionary()


def find_pool() -> Pool:
    """Returns the pool of the running event loop; a worker has one."""
    loop = asyncio.get_running_loop()
    pool = _pools.get(loop)
    if pool is None:
        pool = _pools[loop] = Pool(settings.DATABASE_DATA_PLANE_CONNECTIONS)
    return pool
