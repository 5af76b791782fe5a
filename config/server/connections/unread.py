"""Ends connections whose callers do not read their responses."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from typing import Final, Protocol

# How long a caller may leave a finished response untouched before its connection is closed. A
# stranger's response has four times this in all.
_STUCK_SECONDS: Final = 30.0
_STRANGER_CHECKS: Final = 4


class Response(Protocol):
    """The connection of a response, as the watch sees it."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    is_recognized: bool

    def is_responding(self) -> bool:
        """Returns whether a response has begun and has not ended."""

    def end_stuck(self) -> None:
        """Closes the connection."""


class UnreadWatch:
    """Checks whether the caller of one connection reads what waits for it."""

    __slots__ = ("_checks", "_connection", "_timer")

    def __init__(self, connection: Response) -> None:
        self._connection: Response | None = connection
        self._timer: asyncio.TimerHandle | None = None
        self._checks = 0

    def begin(self) -> None:
        """Notes that the next request is served."""
        self._checks = 0

    def end(self) -> None:
        """Forgets the connection, which is lost and would otherwise be a cycle with its watch."""
        self._connection = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Starts to check whether the caller reads the rest of its response, if any is left."""
        connection = self._connection
        if (
            connection is not None
            and self._timer is None
            and connection.transport.get_write_buffer_size()
        ):
            self._timer = connection.loop.call_later(
                _STUCK_SECONDS, self._judge, self.count_unread()
            )

    def _judge(self, unread: int) -> None:
        """Closes the connection if the caller has read nothing since ``unread`` was counted."""
        self._timer = None
        connection = self._connection
        if connection is None or not connection.transport.get_write_buffer_size():
            return
        self._checks += 1
        # A running response to a recognized caller has its own time limits.
        if connection.is_responding() and not connection.is_recognized:
            is_stuck = self._checks >= _STRANGER_CHECKS
        else:
            is_stuck = self.count_unread() >= unread and not connection.is_responding()
        if is_stuck:
            connection.end_stuck()
        else:
            self.look()

    def count_unread(self) -> int:
        """Returns the number of bytes that the caller has not read.

        The kernel's buffer counts too: a slow caller drains it for a long time before our own
        buffer shrinks. Nothing is unread on a lost connection.
        """
        if self._connection is None:
            return 0
        transport = self._connection.transport
        descriptor = transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return 0
        queued = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
        return transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)
