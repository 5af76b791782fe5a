"""Runs large pieces of work in a few threads, so that the event loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from prometheus_client import Counter, Gauge

from config.api.errors import TooManyRequests

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# A body or an answer above this size takes the event loop up to 5 ms, if it is made for it: a list
# of 32 KiB may hold 3,000 objects. A thread costs 0.1 ms more, so smaller ones stay on the loop.
LARGE_BYTES: Final = 32 * 1024
# The threads share one interpreter lock with the loop. A second one lets an organization's work
# begin while another's runs; more would only slow the loop down.
_THREADS: Final = 2
# The most pieces of work of one organization that wait.
_MAX_WAITING: Final = 64
_WAITING: Final = Gauge(
    "causeway_large_work_waiting",
    "Large bodies and answers that wait for a thread.",
    multiprocess_mode="livesum",
)
_REFUSALS: Final = Counter(
    "causeway_large_work_refusals_total",
    "Large bodies and answers refused because too many of their organization wait.",
)


def _ignore(size: int) -> None:
    """Counts nothing."""


class LargeWork:
    """Runs work of many organizations in turn: at most one piece of each at a time.

    So the large bodies of one organization wait for each other, and not another organization's for
    them. Only the worker's event loop calls it.
    """

    def __init__(self, name: str, count: Callable[[int], None] = _ignore) -> None:
        """Makes the threads, which have this name in the process list.

        ``count`` counts the bytes of a worker that running work takes; it gives a negative number
        back.
        """
        self._count = count
        self._threads = ThreadPoolExecutor(_THREADS, name)
        self._free = _THREADS
        # The waiting work of each owner; an owner is in exactly one of ``_turns`` and ``_running``.
        self._waiting: dict[Hashable, deque[_Piece]] = {}
        self._turns: deque[Hashable] = deque()
        self._running: set[Hashable] = set()

    async def run(
        self,
        owner: Hashable,
        function: Callable[..., Result],
        *arguments: Any,
        scratch: int = 0,
    ) -> Result:
        """Returns what the function returns, when it was the owner's turn.

        ``scratch`` is the number of bytes that it takes beside its arguments while it runs. Raises
        :class:`TooManyRequests` if too much work of this owner waits. Work whose caller is
        cancelled is never begun, or its result is dropped.
        """
        waiting = self._waiting.setdefault(owner, deque())
        if len(waiting) >= _MAX_WAITING:
            _REFUSALS.inc()
            logger.warning("%d large bodies of one organization wait: refused", len(waiting))
            raise TooManyRequests(
                f"The organization has {_MAX_WAITING} large requests waiting, the most that a "
                "worker allows. Wait for one of them to end.",
                headers={"Retry-After": "1"},
            )
        piece = _Piece(function, arguments, asyncio.get_running_loop().create_future(), scratch)
        waiting.append(piece)
        _WAITING.inc()
        if owner not in self._running and len(waiting) == 1:
            self._turns.append(owner)
        self._begin_next()
        return await piece.result

    def close(self) -> None:
        """Ends the threads when their present work is done; waiting work is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin_next(self) -> None:
        """Begins the work of the owners whose turn it is, as far as threads are free."""
        while self._free and self._turns:
            owner = self._turns.popleft()
            waiting = self._waiting[owner]
            piece = waiting.popleft()
            _WAITING.dec()
            if piece.result.cancelled():
                self._end_turn(owner)
                continue
            self._free -= 1
            self._running.add(owner)
            self._count(piece.scratch)
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(self._threads, piece.function, *piece.arguments)
            running.add_done_callback(partial(self._end, owner, piece))

    def _end(self, owner: Hashable, piece: _Piece, done: asyncio.Future[Any]) -> None:
        self._free += 1
        self._count(-piece.scratch)
        self._running.discard(owner)
        self._end_turn(owner)
        # An error that nobody waits for any more is looked at here, or asyncio would log it.
        error = None if done.cancelled() else done.exception()
        if piece.result.cancelled() or done.cancelled():
            piece.result.cancel()
        elif error is not None:
            piece.result.set_exception(error)
        else:
            piece.result.set_result(done.result())
        self._begin_next()

    def _end_turn(self, owner: Hashable) -> None:
        """Puts the owner behind the others if more of its work waits, else forgets it."""
        if self._waiting[owner]:
            self._turns.append(owner)
        else:
            del self._waiting[owner]


class _Piece:
    """One call that waits for its turn or runs, and the future of its result."""

    __slots__ = ("arguments", "function", "result", "scratch")

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        result: asyncio.Future[Any],
        scratch: int,
    ) -> None:
        self.function = function
        self.arguments = arguments
        self.result = result
        self.scratch = scratch
