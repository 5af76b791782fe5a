"""Limits the time that a connection waits for its caller: for a head, a body and its end."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

# A sixth of the time for a body must bring this much of it: 500 bytes a second by default.
MIN_BODY_BYTES: Final = 5_000
_WINDOWS: Final = 6

Item = TypeVar("Item")


class DeadlineQueue(Generic[Item]):
    """Items that each have the same number of seconds from their start.

    They expire in the order of their starts, so one timer serves all of them, and starting or
    stopping one takes constant time.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[Item], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self._due: OrderedDict[Item, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def start(self, item: Item) -> None:
        """Gives an item its time, from now on."""
        self._due[item] = due = self._loop.time() + self._seconds
        self._due.move_to_end(item)
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._expire_due)

    def stop(self, item: Item) -> None:
        self._due.pop(item, None)

    def _expire_due(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._due:
            item, due = next(iter(self._due.items()))
            if due > now:
                self._timer = self._loop.call_at(due, self._expire_due)
                return
            del self._due[item]
            self._expire(item)


class BodyClock:
    """Measures how long the service waits for the bytes of one body.

    It runs only while the application wants more of the body and none is there: neither the time
    for which we do not read nor the time for which the application works counts. A body has
    ``seconds`` in all, and each sixth of them must bring :data:`MIN_BODY_BYTES` of it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._expire = expire
        self._left = seconds
        self._window = seconds / _WINDOWS
        self._window_left = self._window
        self._window_bytes = 0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._since = self._loop.time()
        self._timer = self._loop.call_later(min(self._left, self._window_left), self._judge)

    def stop(self, received: int = 0) -> None:
        """Stops the clock; ``received`` is the number of bytes for which it ran."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._spend()
        self._window_bytes += received

    def _spend(self) -> None:
        now = self._loop.time()
        self._left -= now - self._since
        self._window_left -= now - self._since
        self._since = now

    def _judge(self) -> None:
        """Begins the next window, or ends the body if this one brought too little."""
        self._timer = None
        self._spend()
        if self._left <= 0 or self._window_bytes < MIN_BODY_BYTES:
            self._expire()
            return
        self._window_left, self._window_bytes = self._window, 0
        self.start()
