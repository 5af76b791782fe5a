"""Uvicorn's HTTP/1.1 protocol with bounds on request headers and on unread responses."""

from __future__ import annotations

import fcntl
import sys
import termios
from typing import Any, Final

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from config.api.errors import GatewayError, HeadersTooLarge
from config.server.readiness import readiness

MAX_HEADER_BYTES: Final = 65_536
# How long a caller may leave a finished response untouched before its connection is closed.
_STUCK_SECONDS: Final = 30.0


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's protocol, which has none of these bounds.

    * The parser collects headers of any size, in quadratic time on the event loop. Here headers end
      at :data:`MAX_HEADER_BYTES` with status 431.
    * A finished response stays in memory until the caller reads it. Here a caller that reads no
      byte of it for :data:`_STUCK_SECONDS` is disconnected.
    * When a connection with pipelined requests is lost, uvicorn notifies only the last request.
      Here the request that is being answered is notified.

    The overridden methods and the attributes used are private to uvicorn, so pyproject pins its
    minor version and ``tests/config/server/test_uvicorn.py`` checks that all of them still exist.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._is_in_head = True
        self._is_lost = False
        self._is_watching = False
        # The request that is being answered: the first of the pipelined ones without a response.
        self._answered: RequestResponseCycle | None = None

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > MAX_HEADER_BYTES:
            self._refuse(HeadersTooLarge())
        self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["causeway.abort"] = self.transport.abort  # type: ignore[typeddict-unknown-key]
        self.scope["causeway.recognized"] = self.recognize  # type: ignore[typeddict-unknown-key]

    def recognize(self) -> None:
        """Notes that the caller of this connection is known."""

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()
        if readiness.is_draining:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_head, self._head_bytes = True, 0

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def shutdown(self) -> None:
        super().shutdown()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _watch(self) -> None:
        """Starts to check whether the caller reads the rest of its response, if any is left."""
        if not self._is_watching and not self._is_lost and self.transport.get_write_buffer_size():
            self._is_watching = True
            self.loop.call_later(_STUCK_SECONDS, self._close_if_stuck, self._unread_bytes())

    def _close_if_stuck(self, unread: int) -> None:
        """Closes the connection if the caller has read nothing since ``unread`` was counted."""
        self._is_watching = False
        if self._is_lost or not self.transport.get_write_buffer_size():
            return
        # A running response has its own time limits.
        is_under_way = (
            self._answered is not None
            and self._answered.response_started
            and not self._answered.response_complete
        )
        if self._unread_bytes() >= unread and not is_under_way:
            self.transport.abort()
        else:
            self._watch()

    def _unread_bytes(self) -> int:
        """Returns the number of bytes that the caller has not read.

        The kernel's buffer counts too: a slow caller drains it for a long time before our own
        buffer shrinks.
        """
        descriptor = self.transport.get_extra_info("socket").fileno()
        if descriptor < 0:
            return 0
        queued = fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4))
        return self.transport.get_write_buffer_size() + int.from_bytes(queued, sys.byteorder)

    def _refuse(self, error: GatewayError) -> None:
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(error.body())
        self.transport.write(
            b"HTTP/1.1 %d Request Header Fields Too Large\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
            % (error.status, len(body), body)
        )
        self.transport.close()
