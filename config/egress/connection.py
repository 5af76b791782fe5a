"""One HTTP/1.1 connection to an upstream, with its current exchange.

The strict parser is llhttp; this module keeps the order of the steps. It knows neither addresses
nor policies: the client opens the connection.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Sequence
from typing import Final, cast

import httptools

from config.egress.errors import BadResponse, ConnectionLost, EgressError, EndedEarly, TimedOut

# The bytes of a body that may wait for the reader; beyond them, reading from the upstream pauses.
_WAITING_BYTES: Final = 64 * 1024
# The bytes that may arrive without a byte of a body: heads, interim responses, trailers.
_HEAD_BYTES: Final = 64 * 1024
_MAX_HEADERS: Final = 128
# Encrypting a longer piece at once would block the event loop.
_PIECE_BYTES: Final = 256 * 1024
# An empty part of a body would keep all of it in memory.
_NOTHING: Final = memoryview(b"")


class _Waits:
    """The waits of one connection, one at a time, each with a limit.

    A timer for each wait would cost more than the wait. So the timer of an earlier wait stays, and
    looks when it fires.
    """

    __slots__ = ("_due", "_expire", "_loop", "_phase", "_timer", "_timer_at", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[str], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._due: float | None = None
        self._phase = ""
        self._timer: asyncio.TimerHandle | None = None
        # uvloop's handle of a time that has passed does not know when it was due.
        self._timer_at = 0.0
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Waits until :meth:`wake` is called."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Tells the waiting reader that the state of the exchange has changed."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def begin(self, phase: str, seconds: float, deadline: float) -> None:
        """Calls `expire` with the phase after these seconds, or with "total" at the deadline."""
        due = time.monotonic() + seconds
        if deadline < due:
            due, phase = deadline, "total"
        self._due, self._phase = due, phase
        if self._timer is not None and self._timer_at > due:
            self.stop()
        if self._timer is None:
            self._start(due)

    def end(self) -> None:
        """Notes that the wait is over."""
        self._due = None

    def stop(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def release(self) -> None:
        """Cancels the timer and forgets the owner, which would otherwise be a cycle with it."""
        self.stop()
        self._expire = _ignore

    def _look(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if time.monotonic() >= self._due:
            self._expire(self._phase)
        else:
            self._start(self._due)

    def _start(self, due: float) -> None:
        self._timer_at = due
        self._timer = self._loop.call_at(due, self._look)


def _ignore(phase: str) -> None:
    """Does nothing for an exchange that has ended."""


class _Body:
    """The unread parts of a body.

    The parser adds them itself: a stream has a part for each event, and a method of ours would cost
    more than the part. :meth:`count` makes ``size`` the number of their bytes.
    """

    __slots__ = ("_counted", "_parts", "add", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._counted = self.size = 0
        self.add = self._parts.append

    def count(self) -> bool:
        """Counts the bytes of new parts; returns whether there are any."""
        self.size += sum(map(len, self._parts[self._counted :]))
        has_new, self._counted = len(self._parts) > self._counted, len(self._parts)
        return has_new

    def take(self) -> bytes:
        """Removes all parts and returns their bytes."""
        if not self.size:
            return b""
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self.clear()
        return body

    def clear(self) -> None:
        self._parts.clear()
        self._counted = self.size = 0


class _Reading:
    """Pauses and resumes reading from a transport, with or without TLS.

    uvloop's TLS transport reads on for a while, and loses undelivered bytes when the other side
    closes. A buffer limit of one byte makes it stop too.
    """

    __slots__ = ("_loop", "_set_buffer_limits", "_transport", "is_paused")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        # Only TLS transports have this method, in both event loops.
        self._set_buffer_limits = getattr(transport, "set_read_buffer_limits", None)
        self.is_paused = False

    def pause(self) -> None:
        self.is_paused = True
        self._transport.pause_reading()
        if self._set_buffer_limits is not None:
            self._set_buffer_limits(1, 0)

    def resume(self) -> None:
        self.is_paused = False
        self._transport.resume_reading()
        if self._set_buffer_limits is not None:
            # The transport delivers its buffered bytes in the next turn of the loop; the limits are
            # lifted after that.
            self._loop.call_soon(self._lift_buffer_limits)

    def _lift_buffer_limits(self) -> None:
        if (
            self._set_buffer_limits is not None
            and not self.is_paused
            and not self._transport.is_closing()
        ):
            self._set_buffer_limits()


class UpstreamConnection(asyncio.Protocol):
    """Sends one request at a time and receives its response, for one waiting reader.

    `status` and `headers` (names in lower case, values of one name joined) are set when
    `receive_head` returns. `problem` is the error that ended an exchange before `is_complete`.
    """

    def __init__(self, on_lost: Callable[[UpstreamConnection], None]) -> None:
        self.is_open = False
        self.idle_since = 0.0
        self.transport: asyncio.Transport
        self._reading: _Reading
        self._on_lost = on_lost
        self._on_end: Callable[[UpstreamConnection], None] | None = None
        # The bytes of the part for which the upstream is paused, until the reader wants the next.
        self.unread = 0
        self.note_unread: Callable[[int], None] | None = None
        self._body = _Body()
        self.on_body = self._body.add
        self._parser = httptools.HttpResponseParser(self)
        self._loop = asyncio.get_running_loop()
        self._waits = _Waits(self._loop, lambda phase: self.fail(TimedOut(phase)))
        self._is_writable = True
        self._reset()
        self.is_complete = True

    def _reset(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.problem: EgressError | None = None
        self.is_complete = False
        # The seconds that parsing the response has taken of the event loop.
        self.spent = 0.0
        self._has_head = False
        self._is_begun = False
        self._unsent = _NOTHING
        self._rest: list[bytes | memoryview] = []  # the last piece of the body comes first
        self._is_reusable = False
        self._header_count = 0
        self._bytes_without_body = 0
        self._body.clear()

    @property
    def is_reusable(self) -> bool:
        """Returns whether another exchange may use this connection."""
        # A connection that is paused with unread bytes would never receive the next response.
        is_sent = not self._unsent and not self._rest
        return self._is_reusable and is_sent and not self._reading.is_paused and self.is_open

    @property
    def is_sent(self) -> bool:
        """Returns whether the upstream may act on the request.

        It may once the last byte was handed to the transport: a body is one JSON document, of which
        a part is of no use. It may also answer earlier.
        """
        return self._has_head or (self._is_begun and not self._unsent and not self._rest)

    @property
    def has_news(self) -> bool:
        """Returns whether the reader need not wait: bytes, the end or a problem have arrived."""
        return bool(self._body.size) or self.is_complete or self.problem is not None

    def send(self, head: bytes, body: bytes, rest: Sequence[bytes | memoryview] = ()) -> None:
        """Begins an exchange and sends the first piece of the request."""
        self._reset()
        if not self.is_open:
            # The connection was lost before this exchange began.
            self.problem = ConnectionLost("closed before the answer")
            return
        self._is_begun = True
        self.transport.write(head + body[:_PIECE_BYTES])
        self._unsent = memoryview(body)[_PIECE_BYTES:] or _NOTHING
        self._rest = [*reversed(rest)]

    async def receive_head(self, seconds: float, deadline: float) -> None:
        """Sends the rest of the request and returns when the response's headers have arrived.

        Raises `EgressError`. If the response comes before the whole request was sent, the rest is
        never sent.
        """
        self._waits.begin("first byte", seconds, deadline)
        try:
            while not self._has_head and self.problem is None:
                if self._rest and not self._unsent:
                    self._unsent = memoryview(self._rest.pop())
                elif self._unsent and self._is_writable:
                    self.transport.write(self._unsent[:_PIECE_BYTES])
                    self._unsent = self._unsent[_PIECE_BYTES:] or _NOTHING
                else:
                    await self._waits.wait()
        finally:
            self._waits.end()
        if self.problem is not None:
            raise copy_problem(self)

    async def wait_for_news(self, seconds: float, deadline: float) -> None:
        """Waits for bytes, the end or a problem; idle for longer than this is a problem.

        Only a reader that waits lets the upstream continue, so that one part of the body is in
        memory and not a second one behind it.
        """
        if self._reading.is_paused:
            self._resume()
        self._waits.begin("idle", seconds, deadline)
        try:
            while not self.has_news:
                await self._waits.wait()
        finally:
            self._waits.end()

    def take_body(self) -> bytes:
        """Returns the unread bytes of the body."""
        body = self._body.take()
        if self.is_complete and self._reading.is_paused:
            self._resume()
        return body

    def _resume(self) -> None:
        self._reading.resume()
        self.unread = 0
        if self.note_unread is not None:
            self.note_unread(0)

    def linger(self, seconds: float, on_end: Callable[[UpstreamConnection], None]) -> None:
        """Waits in the background for the end of a response that is no longer read."""
        self._on_end = on_end
        self._lingering = self._loop.call_later(seconds, self.abort)

    def fail(self, problem: EgressError) -> None:
        """Ends the exchange and the connection; keeps only the first problem."""
        if self.problem is None and not self.is_complete:
            self.problem = problem
        self._waits.wake()
        self.abort()

    def abort(self) -> None:
        """Closes the connection at once.

        The `close` of a TLS transport would wait for the other side, and an upstream that keeps
        sending costs money.
        """
        self.is_open = False
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._reading = _Reading(self._loop, self.transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Parses bytes of the upstream; ends the exchange if they break HTTP or a bound."""
        if self.is_complete or not self.is_open:
            # Unrequested bytes must never become the response to the next request.
            self.abort()
            return
        self._bytes_without_body += len(data)
        is_lingering = self._on_end is not None
        began = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail(BadResponse("interim status"))
        except httptools.HttpParserError:
            # A response that ended in the same bytes is not complete either: its end is in doubt.
            self.is_complete = False
            self.fail(BadResponse())
        self.spent += time.perf_counter() - began
        if self._body.count():
            self._bytes_without_body = 0
            if is_lingering:
                self._body.clear()
            elif self._body.size > _WAITING_BYTES and self.is_open:
                if not self._reading.is_paused:
                    self._reading.pause()
                self.unread = self._body.size
                if self.note_unread is not None:
                    self.note_unread(self.unread)
        elif self._bytes_without_body > _HEAD_BYTES:
            self.fail(BadResponse("headers without end"))
        if self._has_head:
            self._waits.wake()

    def eof_received(self) -> None:
        # The connection closes soon, and must not be used for a new request until then.
        self.is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.is_complete:
            has_length = not {"content-length", "transfer-encoding"}.isdisjoint(self.headers)
            if self._has_head and not has_length and exc is None:
                self.is_complete = True
            elif self._has_head or self._bytes_without_body:
                self.fail(EndedEarly("ended early"))
            else:
                self.fail(ConnectionLost("closed before the answer"))
        self._waits.wake()
        self._on_lost(self)
        # Both lead back to this connection: without them it is freed at once, with its transport.
        self._waits.release()
        del self._parser

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._waits.wake()

    # The callbacks of the parser follow.

    def on_message_begin(self) -> None:
        if self._has_head:
            # The second of two responses to one request may belong to another caller.
            raise httptools.HttpParserError

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer
        self._header_count += 1
        if self._header_count > _MAX_HEADERS:
            raise httptools.HttpParserError
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if 100 <= self.status < 200 and self.status != 101:
            self.headers = {}
        elif self.headers.get("transfer-encoding", "chunked").lower() != "chunked":
            raise httptools.HttpParserError
        else:
            self._has_head = True

    def on_message_complete(self) -> None:
        if not self._has_head:
            return  # an interim response
        self.is_complete = True
        self._is_reusable = self._parser.should_keep_alive()
        if self._on_end is not None:
            self._lingering.cancel()
            on_end, self._on_end = self._on_end, None
            # Called after the parser returns: surplus bytes in the same piece make the connection
            # unusable.
            self._loop.call_soon(on_end, self)


def copy_problem(connection: UpstreamConnection) -> EgressError:
    """Returns a copy of the problem of a connection, to be raised.

    A traceback leads to the connection. If the connection led to the same error, only the cyclic
    garbage collector would free both, and a busy worker runs it rarely.
    """
    assert connection.problem is not None
    return copy.copy(connection.problem)
