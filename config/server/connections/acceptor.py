"""Accepts connections, few in each turn of the event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

logger = logging.getLogger(__name__)

# A new connection takes the loop about a tenth of a millisecond. The event loop's own server would
# accept all that wait, thousands in an attack, before it serves anybody.
_ACCEPTED_AT_ONCE: Final = 16
# How long the process waits when it may open no more files.
_PAUSE_SECONDS: Final = 0.2


class Acceptor:
    """Accepts the connections of a listening socket until it is closed."""

    def __init__(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        self._listener = listener
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        # The tasks that wrap accepted sockets; the loop itself keeps only weak references.
        self._tasks: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._resume()

    def close(self) -> None:
        """Accepts no more connections."""
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Waits until the connections that were accepted last belong to their protocols."""
        await asyncio.gather(*self._tasks)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as exc:
                logger.error("no connection can be accepted: %s", exc.strerror)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(_PAUSE_SECONDS, self._resume)
                return
            connection.setblocking(False)
            task = self._loop.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener, self._accept)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:
            connection.close()
