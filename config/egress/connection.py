"""One HTTP/1.1 connection to an upstream, and the exchange that it is in.

The parser is llhttp, strict; what is left is the order of things. It knows neither addresses nor
policies: the client dials and hands over an open connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from config.egress.errors import BadResponse, ConnectFailed, EgressError, TimedOut

# As much of a body as waits for its reader; the upstream is stopped beyond.
_WAITING_BYTES: Final = 64 * 1024
# As much as may come without a byte of a body: heads, interim answers, trailers.
_HEAD_BYTES: Final = 64 * 1024
_MAX_HEADERS: Final = 128
# Encrypting a longer piece at once would stall everybody on the loop.
_PIECE_BYTES: Final = 256 * 1024


class Connection(asyncio.Protocol):
    """Sends one request at a time and takes in its answer, for one waiting reader.

    `status` and `headers` (names in lower case, values of one name joined) are there once
    `answered` returns; `problem` is why there will be nothing more, unless `is_complete`.
    """

    def __init__(self, on_lost: Callable[[Connection], None]) -> None:
        self.is_open = False
        self.idle_since = 0.0
        self.transport: asyncio.Transport
        self._limit_buffer: Callable[..., None] | None = None
        self._on_lost = on_lost
        self._on_end: Callable[[Connection], None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._is_writable = True
        self._reset()
        self.is_complete = True

    def _reset(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.problem: EgressError | None = None
        self.is_complete = False
        self._has_head = False
        self._unsent = memoryview(b"")
        self._is_reusable = False
        self._is_paused = False
        self._header_count = 0
        self._bodiless = 0
        self._size = 0
        self._parts: list[bytes] = []

    @property
    def is_reusable(self) -> bool:
        """Tell whether another exchange may follow this one."""
        # Paused with what nobody has read, it would never hear the next answer.
        return self._is_reusable and not self._unsent and not self._is_paused and self.is_open

    @property
    def has_news(self) -> bool:
        """Tell whether a reader need not wait: there are bytes, the end, or a problem."""
        return bool(self._parts) or self.is_complete or self.problem is not None

    def send(self, head: bytes, body: bytes) -> None:
        """Begin an exchange: send a request, the beginning of a long one."""
        self._reset()
        if not self.is_open:
            # It was lost before there was anything to tell of it.
            self.problem = ConnectFailed("closed before the answer")
            return
        self.transport.write(head + body[:_PIECE_BYTES])
        self._unsent = memoryview(body)[_PIECE_BYTES:]

    async def answered(self) -> None:
        """Send the rest and return when the headers of the answer are there.

        Raises `EgressError`. The answer may come before the whole request was sent; nobody sends
        the rest of it then.
        """
        while not self._has_head and self.problem is None:
            if self._unsent and self._is_writable:
                self.transport.write(self._unsent[:_PIECE_BYTES])
                self._unsent = self._unsent[_PIECE_BYTES:]
            else:
                await self.wait()
        if self.problem is not None:
            raise self.problem

    async def wait(self) -> None:
        """Wait until something has changed."""
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def take(self) -> bytes:
        """Return what has come of the body and nobody has read; the upstream may go on."""
        parts, self._parts, self._size = self._parts, [], 0
        if self._is_paused:
            self._resume()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def linger(self, seconds: float, on_end: Callable[[Connection], None]) -> None:
        """Wait in the background for the end of an answer that nobody reads any more."""
        self._on_end = on_end
        self._lingering = self._loop.call_later(seconds, self.abort)

    def fail(self, problem: EgressError) -> None:
        """End the exchange and the connection; what was wrong first is what is told."""
        if self.problem is None and not self.is_complete:
            self.problem = problem
        self._wake()
        self.abort()

    def expire(self, phase: str) -> None:
        """End the exchange because a time limit has passed."""
        self.fail(TimedOut(phase))

    def abort(self) -> None:
        """Close at once: a TLS transport's own `close` waits for the other side's farewell, and
        an upstream that goes on talking must not be paid for listening."""
        self.is_open = False
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        # TLS transports alone have it, of both loops.
        self._limit_buffer = getattr(transport, "set_read_buffer_limits", None)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self.is_complete or not self.is_open:
            # Nobody asked: what is said now must never be taken for an answer to what comes next.
            self.abort()
            return
        self._bodiless += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.fail(BadResponse("interim status"))
        except httptools.HttpParserError:
            # Also of an answer that ended in the same bytes: where it did is in doubt.
            self.is_complete = False
            self.fail(BadResponse())
        if self._bodiless > _HEAD_BYTES:
            self.fail(BadResponse("headers without end"))
        if self._size > _WAITING_BYTES and not self._is_paused and self.is_open:
            self._pause()
        if self._has_head:
            self._wake()

    def _pause(self) -> None:
        """Stop the upstream, TLS or not, before the end of what it sends.

        uvloop's TLS reads on for a while, and forgets what it has not handed over when the other
        side hangs up: with a limit of one byte it stops to read as well.
        """
        self._is_paused = True
        self.transport.pause_reading()
        if self._limit_buffer is not None:
            self._limit_buffer(1, 0)

    def _resume(self) -> None:
        self._is_paused = False
        self.transport.resume_reading()
        if self._limit_buffer is not None:
            # After what it has kept until now, which is handed over in the next turn of the loop.
            self._loop.call_soon(self._read_freely)

    def _read_freely(self) -> None:
        if self.is_open and not self._is_paused and self._limit_buffer is not None:
            self._limit_buffer()

    def eof_received(self) -> None:
        # It is closed in a moment, and must not be taken for a new request until then.
        self.is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.is_complete:
            if self._has_head and self._ends_with_connection() and exc is None:
                self.is_complete = True
            elif self._has_head or self._bodiless:
                self.fail(BadResponse("ended early"))
            else:
                self.fail(ConnectFailed("closed before the answer"))
        self._wake()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable = True
        self._wake()

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self._has_head:
            # Two answers to one request: the second may be somebody else's.
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

    def on_body(self, data: bytes) -> None:
        self._bodiless = 0
        if self._on_end is None:
            self._size += len(data)
            self._parts.append(data)

    def on_message_complete(self) -> None:
        if not self._has_head:
            return  # an interim answer
        self.is_complete = True
        self._is_reusable = self._parser.should_keep_alive()
        if self._on_end is not None:
            self._lingering.cancel()
            ended, self._on_end = self._on_end, None
            # Not before the parser has come back: what follows in the same bytes counts.
            self._loop.call_soon(ended, self)

    def _ends_with_connection(self) -> bool:
        return not {"content-length", "transfer-encoding"} & self.headers.keys()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
