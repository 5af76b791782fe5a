"""How much a caller may send before anybody has looked at who it is."""

from __future__ import annotations

import fcntl
import sys
import termios
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec
from django.conf import settings
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from config.api.errors import GatewayError, HeadersTooLarge, PayloadTooLarge

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_HEADER_BYTES: Final = 65_536
# How long a caller may take not a byte of an answer that has ended.
_STUCK_SECONDS: Final = 30.0


class HttpProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP/1.1 with bounds on what a caller sends, and on how long it takes an answer.

    The parser gathers a header of any size, in time that grows with its square, on the event loop
    that everybody shares. What was written waits for the caller to take it, which some never do:
    who takes not a byte of what has ended for :data:`_STUCK_SECONDS` is let go. Of requests that
    came in a row, uvicorn tells the last one alone that the caller is gone.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._is_in_head = True
        self._is_lost = False
        self._is_watched = False
        # The one that is answered: of requests in a row, the first that has not been.
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

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

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
        """Begins to look whether the rest of an ended answer is taken, if there is any."""
        if not self._is_watched and not self._is_lost and self.transport.get_write_buffer_size():
            self._is_watched = True
            self.loop.call_later(_STUCK_SECONDS, self._look, self._left())

    def _look(self, left: int) -> None:
        self._is_watched = False
        if self._is_lost or not self.transport.get_write_buffer_size():
            return
        # How long an answer under way may wait is its own affair.
        is_under_way = (
            self._answered is not None
            and self._answered.response_started
            and not self._answered.response_complete
        )
        if self._left() >= left and not is_under_way:
            self.transport.abort()
        else:
            self._watch()

    def _left(self) -> int:
        """Returns how many bytes wait for the caller.

        The kernel's part counts: a slow caller drains that for long before it asks for more.
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


class ClientGone(Exception):
    """The caller hung up; there is nobody to answer."""


async def gather(receive: Receive) -> bytes:
    """Reads a request body whole; raises :class:`PayloadTooLarge` and :class:`ClientGone`."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > settings.MAX_REQUEST_BYTES:
            raise PayloadTooLarge
        if not message.get("more_body"):
            return b"".join(parts)


def bounded(application: Application) -> Application:
    """Refuses a request body over ``MAX_REQUEST_BYTES`` before Django writes any of it to disk.

    A body without a length is gathered first and gets one: Django REST Framework takes a body of
    unknown length for an empty one.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length")
        if length is not None:
            if int(length) > settings.MAX_REQUEST_BYTES:
                await _respond(send, PayloadTooLarge())
            else:
                await application(scope, receive, send)
            return
        if b"transfer-encoding" not in headers:
            await application(scope, receive, send)
            return
        try:
            body = await gather(receive)
        except ClientGone:
            return
        except PayloadTooLarge as error:
            await _respond(send, error)
            return
        known = [(name, value) for name, value in scope["headers"] if name != b"transfer-encoding"]
        known.append((b"content-length", str(len(body)).encode()))
        await application({**scope, "headers": known}, _replay(body, receive), send)

    return checked


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a receiver that gives the gathered body once, and then what else comes."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


async def _respond(send: Send, error: GatewayError) -> None:
    body = msgspec.json.encode(error.body())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
