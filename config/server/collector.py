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
# leave is freed without the collector; its cycles are few.
_THRESHOLDS: Final = (10_000, 10, 1_000_000)
# How often the need of a full collection is judged, and how long one waits for an idle worker.
_INTERVAL_SECONDS: Final = 1.0
_IDLE_SECONDS: Final = 60.0
_LONGEST_SECONDS: Final = 3_600.0
# A failed request may leave its body in a cycle, which no budget counts. A full collection follows
# when requests have given back this number of bytes.
_RELEASED_BYTES: Final = 32 * 1024 * 1024


class Collector:
    """Runs full collections while a worker is idle, and after many bytes were given back."""

    def __init__(self, bulkheads: Bulkheads) -> None:
        self._bulkheads = bulkheads
        self._last = time.monotonic()
        self._released = 0

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
        waited = time.monotonic() - self._last
        if (
            self._bulkheads.released - self._released > _RELEASED_BYTES
            or (self._bulkheads.is_idle and waited > _IDLE_SECONDS)
            or waited > _LONGEST_SECONDS
        ):
            gc.collect()
            self._last = time.monotonic()
            self._released = self._bulkheads.released
        self._look_later()
