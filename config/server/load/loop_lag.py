"""Measures how late the event loop is, and writes the figures of the worker meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from config.server.load.figures import figures

_INTERVAL_SECONDS: Final = 0.25
_LAG: Final = figures.histogram(
    "causeway_event_loop_lag_seconds",
    "How late a timer of the event loop runs, four times a second in each worker.",
    (),
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)


class LoopLag:
    """Runs a timer four times a second; ``shows`` set gauges."""

    def __init__(self, shows: Sequence[Callable[[], None]] = ()) -> None:
        self._shows = shows

    def start(self) -> None:
        self._run_later()

    def stop(self) -> None:
        """Stops the timer, and writes what is left."""
        self._timer.cancel()
        figures.flush()

    def _run_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + _INTERVAL_SECONDS
        self._timer = loop.call_at(self._due, self._run)

    def _run(self) -> None:
        _LAG.observe((), max(asyncio.get_running_loop().time() - self._due, 0.0))
        try:
            for show in self._shows:
                show()
            figures.flush()
        finally:
            self._run_later()
