"""One request and its response: the two callables that ASGI gives to the application."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable
from contextvars import Context
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.server import ServerState

from config.server.connections.table import BodyClock

logger = logging.getLogger(__name__)

# RFC 9110, section 5.5 and 5.6.2: what no name and no value of a header may hold.
_NOT_IN_NAMES: Final = re.compile(rb'[\x00-\x20\x7f()<>@,;:\[\]={}\\"]')
_NOT_IN_VALUES: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
# A larger body is written by itself: copying it behind the head costs more than a second write.
_JOINED_BYTES: Final = 65_536
# How long a caller may leave a part of a response unread.
_STUCK_SECONDS: Final = 30.0
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAILURE: Final = b"Internal Server Error"
_FAILURE_HEADERS: Final = [
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"%d" % len(_FAILURE)),
    (b"connection", b"close"),
]


class CycleConnection(Protocol):
    """The connection of a request, as its cycle sees it."""

    transport: asyncio.Transport
    flow: FlowControl
    server_state: ServerState
    body_bytes: int
    notes: dict[str, Any]

    def recognize(self) -> None:
        """Notes that the caller is known."""

    def count_unread(self) -> int:
        """Returns the number of bytes that the caller has not read."""

    def end_stuck(self) -> None:
        """Closes the connection of a caller who reads nothing."""

    def make_body_clock(self) -> BodyClock:
        """Returns a clock for the body that is still to come."""

    def end_response(self, cycle: Cycle) -> None:
        """Notes that the response is complete."""


class Cycle:
    """A request and its response; the application finds it in the scope as ``causeway.cycle``.

    The head of a response is written together with the first part of its body, in one packet.
    """

    __slots__ = (
        "_clock", "_connection", "_default_headers", "_expects_continue", "_has_news", "_head",
        "_is_bodyless", "_is_cancelled", "_is_chunked", "_is_watched", "_left", "_may_chunk",
        "_parts", "_size", "_task", "_waiter", "is_disconnected", "is_unread", "keep_alive",
        "more_body", "notes", "recognize", "response_complete", "response_started",
    )  # fmt: skip

    def __init__(
        self,
        connection: CycleConnection,
        *,
        method: str,
        keep_alive: bool,
        expects_continue: bool,
        may_chunk: bool,
    ) -> None:
        self._connection = connection
        # Tells the server that the caller is known, so that no stranger takes its place.
        self.recognize = connection.recognize
        # What the application notes for later requests of the same connection.
        self.notes = connection.notes
        self._default_headers = connection.server_state.default_headers
        self._is_bodyless = method == "HEAD"
        self._expects_continue = expects_continue
        self.keep_alive = keep_alive
        self.is_disconnected = False
        # Parts of the body that the application has not taken yet.
        self._parts: list[bytes] = []
        self._size = 0
        self.more_body = True
        # The body had not arrived when the work began.
        self.is_unread = False
        self._clock: BodyClock | None = None
        self._has_news = False
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_watched = self._is_cancelled = False
        self.response_started = False
        self.response_complete = False
        # The head of the response, until it is written.
        self._head: list[bytes] = []
        # An older caller takes the sizes of chunks for the body: its body ends with the connection.
        self._may_chunk = may_chunk
        self._is_chunked = False
        # The bytes of the body that are still to come; `None` if its length is not known.
        self._left: int | None = None

    # The server

    def start(self, application: Any, scope: Any) -> None:
        """Starts to serve the request."""
        # The end of the request before may start this one, in a context with its ids.
        self._task = asyncio.get_running_loop().create_task(
            self._run(application, scope), context=Context()
        )
        self._connection.server_state.tasks.add(self._task)

    def feed(self, body: bytes) -> None:
        """Takes a part of the request's body."""
        if not self.response_complete:
            self._parts.append(body)
            self._size += len(body)
            if self._size > HIGH_WATER_LIMIT:
                self._connection.flow.pause_reading()
            self._wake()

    def feed_end(self) -> None:
        """Notes that the body has arrived."""
        if not self.response_complete:
            self.more_body = False
            self._wake()

    def disconnect(self) -> None:
        """Tells the application that its caller has left, unless the response is complete."""
        if self.response_complete or self.is_disconnected:
            return
        self.is_disconnected = True
        self._wake()
        self._cancel_watched()

    def _cancel_watched(self) -> None:
        """Cancels the application's task, once, if it is watched."""
        if self._is_watched and not self._is_cancelled and self._task is not None:
            self._is_cancelled = self._task.cancel()

    async def _run(self, application: Any, scope: Any) -> None:
        """Runs the application; one that fails gives a response 500, or ends the connection."""
        self.is_unread = self.more_body
        try:
            await application(scope, self.receive, self.send)
            if not (self.response_complete or self.is_disconnected):
                raise RuntimeError("the application returned without a whole response")
        except BaseException:
            logger.exception("the application failed")
            if self.response_complete:
                return  # the connection may serve the next request already
            if self.response_started and not self._head:
                self._connection.transport.close()
            elif not self.is_disconnected:
                self._send_start(500, _FAILURE_HEADERS)
                self._send_body(_FAILURE, more_body=False)
        finally:
            if self._task is not None:
                self._connection.server_state.tasks.discard(self._task)
                self._task = None

    def _wake(self) -> None:
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The extension of ASGI

    def abort(self) -> None:
        """Closes the connection at once."""
        self._connection.transport.abort()

    def count_unread(self) -> int:
        """Returns the number of bytes that the caller has not read."""
        return self._connection.count_unread()

    async def send_while_read(self, sending: Awaitable[None]) -> bool:
        """Awaits that a part is sent; gives up and returns ``False`` if the caller reads nothing.

        The kernel takes a part only when much of its buffer is free, so a slow caller is seen to
        read by the bytes that are left.
        """
        unread = self.count_unread()
        task = asyncio.ensure_future(sending)
        try:
            while not (await asyncio.wait((task,), timeout=_STUCK_SECONDS))[0]:
                left = self.count_unread()
                if left >= unread:
                    return False
                unread = left
            task.result()
        finally:
            task.cancel()
        return True

    def end_stuck(self) -> None:
        """Closes the connection of a caller who reads nothing, and counts it."""
        self._connection.end_stuck()

    @property
    def is_read(self) -> bool:
        """Returns whether the caller reads fast enough that sending need not wait."""
        return not self._connection.flow.write_paused

    def watch(self) -> None:
        """Cancels the application's task when the caller leaves, or now if it has left."""
        self._is_watched = True
        if self.is_disconnected:
            self._cancel_watched()

    def expire(self) -> None:
        """Cancels the application's task as if the caller had left; it may still get an answer."""
        self._cancel_watched()

    def unwatch(self) -> bool:
        """Ends the watch; returns whether it has cancelled the task, and takes that back once."""
        is_cancelled, self._is_watched, self._is_cancelled = self._is_cancelled, False, False
        if is_cancelled and self._task is not None:
            self._task.uncancel()
        return is_cancelled

    # ASGI

    async def receive(self) -> dict[str, Any]:
        """Returns the next part of the body; after its end, waits until the caller leaves."""
        if not (self.is_disconnected or self.response_complete):
            if self._expects_continue and not self._connection.transport.is_closing():
                self._connection.transport.write(_CONTINUE)
                self._expects_continue = False
            self._connection.flow.resume_reading()
            if not self._has_news:
                await self._wait_for_news()
            self._has_news = False
        if self.is_disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        parts, self._parts, self._size = self._parts, [], 0
        if not self.more_body:
            # A watched application does not ask again: only reading shows that the caller leaves.
            # The head of a request that waits pauses it.
            self._connection.flow.resume_reading()
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def _wait_for_news(self) -> None:
        """Waits for a part of the body, whose clock then runs, or for the end of the request."""
        clock, known = None, self._connection.body_bytes
        if self.more_body:
            clock = self._clock = self._clock or self._connection.make_body_clock()
            clock.start()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
            if clock is not None:
                clock.stop(self._connection.body_bytes - known)

    async def send(self, message: Any) -> None:
        """Sends a part of the response, once the caller has read enough of the earlier parts."""
        flow = self._connection.flow
        if flow.write_paused and not self.is_disconnected:
            await flow.drain()
        if self.is_disconnected:
            return
        kind = message["type"]
        if kind == "http.response.start" and not self.response_started:
            self._send_start(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.response_started and not self.response_complete:
            self._send_body(message.get("body", b""), more_body=message.get("more_body", False))
        else:
            raise RuntimeError(f"the message {kind!r} does not belong here")

    def _send_start(self, status: int, headers: Any) -> None:
        """Renders the head, which is written with the first part of the body."""
        self.response_started = True
        self._expects_continue = False
        if self.more_body:
            # What arrives of the request from now on would be taken for the next one.
            self.keep_alive = False
        head = [_render_status(status)]
        length: bytes | None = None
        is_chunked = says_close = False
        for name, value in (*self._default_headers, *headers):
            name = _check_name(name)
            if name == b"content-length":
                length = value
            elif name == b"transfer-encoding":
                is_chunked = value.lower() == b"chunked"
            elif name == b"connection" and b"close" in value.lower():
                self.keep_alive, says_close = False, True
            head += (name, b": ", value, b"\r\n")
        if _NOT_IN_VALUES.search(b"".join(head[3::4])):
            raise RuntimeError("the value of a header has a control character")
        if not (self.keep_alive or says_close):
            head.append(b"connection: close\r\n")
        has_body = not (self._is_bodyless or status in (204, 304))
        if self._may_chunk and has_body and not (is_chunked or length):
            is_chunked = True
            head.append(b"transfer-encoding: chunked\r\n")
        head.append(b"\r\n")
        self._is_chunked = is_chunked
        if length and not is_chunked:
            self._left = int(length)
        else:
            self._left = None if has_body else 0
        self._head = head

    def _send_body(self, body: bytes | memoryview, *, more_body: bool) -> None:
        parts: list[bytes | memoryview] = [*self._head]
        self._head = []
        if self._is_bodyless:
            self._left = 0
        elif self._is_chunked:
            if body:
                parts += (b"%x\r\n" % len(body), body, b"\r\n")
            if not more_body:
                parts.append(b"0\r\n\r\n")
        else:
            parts.append(body)
            if self._left is not None:
                self._left -= len(body)
                if self._left < 0:
                    raise RuntimeError("the body is longer than its Content-Length")
        if len(body) > _JOINED_BYTES:
            self._connection.transport.writelines(parts)
        elif parts:
            self._connection.transport.write(b"".join(parts))
        if not more_body:
            if self._left:
                raise RuntimeError("the body is shorter than its Content-Length")
            self.response_complete = True
            self._wake()
            self._connection.end_response(self)


@lru_cache(maxsize=256)
def _check_name(name: bytes) -> bytes:
    """Returns the name of a header in lower case."""
    if _NOT_IN_NAMES.search(name):
        raise RuntimeError(f"{name!r} is no name of a header")
    return name.lower()


@lru_cache(maxsize=64)
def _render_status(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")
