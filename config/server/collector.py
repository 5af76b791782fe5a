"""When Python's cyclic garbage collector runs in a worker."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

from config.server.bulkheads import Bulkheads

# New objects that start a collection of the youngest, how many of these start one of the middle
# generation, and how many of those one of all objects: never. The last visits every object of every
# open connection, and so stops the event loop for 0.2 s when there are ten thousand. What requests
# leave is freed without the collector; its cycles are few and die young.
_THRESHOLDS: Final = (2_000, 5, 1_000_000)
# All objects are visited when no request runs, at most this often, and else after the longest time.
_INTERVAL_SECONDS: Final = 60.0
_LONGEST_SECONDS: Final = 3_600.0


class Collector:
    """Runs full collections while a worker is idle."""

    def __init__(self, bulkheads: Bulkheads) -> None:
        self._bulkheads = bulkheads
        self._last = time.monotonic()

    def start(self) -> None:
        """Excludes the objects loaded so far, which live as long as the worker."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        self._look_later()

    def stop(self) -> None:
        self._timer.cancel()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_SECONDS, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        if self._bulkheads.is_idle or now - self._last > _LONGEST_SECONDS:
            gc.collect()
            self._last = now
        self._look_later()
