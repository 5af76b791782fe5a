"""HTTP/1.1 with bounds on what a caller may send, hold and leave unread.

httptools parses, and ``cycle`` speaks ASGI to the application. The bounds:

* Connections have limits: ``connections.table`` says which one makes room for a new one. The
  application calls ``scope["causeway.cycle"].recognize()`` once it has found the caller's key.
* A head has :data:`MAX_HEADER_BYTES`, :data:`MAX_HEADERS` and ``REQUEST_HEAD_TIMEOUT``. The parser
  collects headers of any size, in quadratic time on the event loop.
* What is neither head nor body has as many bytes as the body and :data:`MAX_HEADER_BYTES`: the
  sizes and the extensions of chunks, and trailers, which are dropped.
* A body has ``REQUEST_BODY_TIMEOUT``: see :class:`BodyClock`.
* HTTP/1.1 needs exactly one ``Host``.
* A response to a body that was not read reaches the caller: our side ends, and what arrives is
  discarded for a while. To close at once would reset the connection and take the response back.
* A refusal waits for the responses to earlier requests.
* A caller that does not read its response is disconnected: see :class:`UnreadWatch`.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections import deque
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, Self
from urllib.parse import unquote

import httptools
from django.conf import settings
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from config.api.errors import (
    GatewayError,
    HeadersTooLarge,
    InvalidRequest,
    RequestTimeout,
    TooManyRequests,
    Unavailable,
)
from config.server.bodies import largest_file_body
from config.server.connections.cycle import Cycle
from config.server.connections.open_files import fitting_connections
from config.server.connections.peers import Proxies
from config.server.connections.refusals import ClosingReason, Refusals, render_refusal
from config.server.connections.table import (
    BodyClock,
    ConnectionGroup,
    ConnectionTable,
    DeadlineQueue,
)
from config.server.readiness import readiness

MAX_HEADER_BYTES: Final = 65_536
MAX_HEADERS: Final = 100

Headers = list[tuple[bytes, bytes]]

# The headers that say where a body ends, and the connection.
_FRAMING: Final = frozenset((b"connection", b"content-length", b"transfer-encoding"))
# What is parsed at once: a limit on bytes is exceeded by no more than this.
_PIECE_BYTES: Final = 65_536
# A longer URL is not remembered.
_SHORT_URL_BYTES: Final = 128
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}

# How long a caller may leave a finished response untouched before its connection is closed. A
# stranger's response has four times this in all.
_STUCK_SECONDS: Final = 30.0
_STRANGER_CHECKS: Final = 4

# Requests that wait on one connection while an earlier one is answered. Each takes memory of about
# 4 KB, however few bytes it has.
MAX_WAITING_REQUESTS: Final = 8
_WAITING_REQUEST_BYTES: Final = 4_096
_SOON: Final = {"Retry-After": "1"}
# After the last response, a caller may be silent for so long, send for so long, and send so much
# more than the largest body.
_SILENCE_SECONDS: Final = 2.0
_ENDING_SECONDS: Final = 10.0
_ENDING_BYTES: Final = 4 * 1024 * 1024
# Connections beyond the limits that wait for their callers to read the refusal.
_MAX_REFUSED: Final = 256


class WorkerConnections:
    """The shared state of a worker's connections."""

    _KEY: ClassVar = "causeway.connections"

    @classmethod
    def of(
        cls, state: dict[str, Any], loop: asyncio.AbstractEventLoop, *, keep_alive: float
    ) -> Self:
        """Returns the one of a server, whose state all its connections share."""
        found: Self | None = state.get(cls._KEY)
        if found is None:
            found = state[cls._KEY] = cls(loop, keep_alive=keep_alive)
        return found

    def __init__(self, loop: asyncio.AbstractEventLoop, *, keep_alive: float) -> None:
        """Keeps a connection between two requests for ``keep_alive`` seconds."""
        self._loop = loop
        self.refusals = Refusals()
        self.table = ConnectionTable(
            limit=fitting_connections(settings.MAX_CONNECTIONS),
            limit_per_address=settings.MAX_CONNECTIONS_PER_ADDRESS,
            proxies=Proxies(settings.FORWARDED_ALLOW_IPS),
        )
        self.most_discarded = largest_file_body() + _ENDING_BYTES
        self.heads: DeadlineQueue[BoundedParser] = DeadlineQueue(
            loop, settings.REQUEST_HEAD_TIMEOUT, lambda connection: connection.expire_head()
        )
        self.resting: DeadlineQueue[BoundedParser] = DeadlineQueue(
            loop, keep_alive, lambda connection: connection.expire_rest()
        )
        self.endings: DeadlineQueue[HttpProtocol] = DeadlineQueue(
            loop, _SILENCE_SECONDS, lambda connection: connection.expire_ending()
        )

    def may_refuse_another(self) -> bool:
        """Returns whether one more connection beyond the limits may wait to read its refusal."""
        return len(self.endings) < _MAX_REFUSED

    def start_ending(self, connection: HttpProtocol) -> None:
        """Gives a caller time to read its last response."""
        connection.ends_at = self._loop.time() + _ENDING_SECONDS
        self.endings.start(connection)

    def continue_ending(self, connection: HttpProtocol) -> None:
        """Gives a caller that still sends more time, up to the end of the whole time."""
        if self._loop.time() < connection.ends_at:
            self.endings.start(connection)


class Fault(Exception):
    """Stops the parser: the request is refused."""

    def __init__(self, reason: ClosingReason, error: GatewayError) -> None:
        self.reason = reason
        self.error = error


class BoundedParser(asyncio.Protocol):
    """The parsing half of the HTTP protocol; the other half serves and refuses requests."""

    # Attributes in a dict would take twice the memory, for each of 10,000 connections.
    __slots__ = (
        "_bodyless_bytes", "_cycle", "_discarded_bytes", "_expects_continue", "_has_head_deadline",
        "_headers", "_host", "_is_in_head", "_is_offer", "_parser", "_surplus_bytes", "_url",
        "_worker",
        "body_bytes", "client", "flow", "loop", "scheme", "server", "server_state", "transport",
    )  # fmt: skip

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = _loop or asyncio.get_running_loop()
        self.server_state = server_state
        self.transport: asyncio.Transport
        self.flow: FlowControl
        self.server: tuple[str, int | None] | None = None
        self.client: tuple[str, int] | None = None
        self.scheme: Literal["http", "https"] = "http"
        self._worker = WorkerConnections.of(
            app_state, self.loop, keep_alive=config.timeout_keep_alive
        )
        self._parser: Any = _make_parser(self)
        # The head of a request with a body offers another protocol.
        self._is_offer = False
        # The head that is arriving.
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._host = ""
        # The request that arrived last.
        self._cycle: Cycle | None = None
        self._has_head_deadline = False
        # Bytes of the body of the arriving request.
        self.body_bytes = 0
        # Bytes since the last byte of a body or the end of a message, and how many more bytes of
        # this message were no body than were.
        self._bodyless_bytes = 0
        self._surplus_bytes = 0
        self._is_in_head = True
        # What arrives is discarded: `None`, or the number of bytes so far.
        self._discarded_bytes: int | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.flow = FlowControl(transport)
        self.server = get_local_addr(transport)
        self.client = get_remote_addr(transport)
        self.scheme = "https" if is_ssl(transport) else "http"
        self._host = self.client[0] if self.client else ""

    def pause_writing(self) -> None:
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        self.flow.resume_writing()

    def refuse(self, reason: ClosingReason, error: GatewayError) -> None:
        """Refuses the arriving request; nothing more is parsed."""
        raise NotImplementedError

    def is_callers_turn(self) -> bool:
        """Tells whether no request of the connection is unanswered."""
        raise NotImplementedError

    def parse(self, data: bytes) -> None:
        """Parses what arrived, until a part of it is refused."""
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            while piece and self._discarded_bytes is None:
                self._bodyless_bytes += len(piece)
                self._surplus_bytes += len(piece)
                try:
                    try:
                        self._parser.feed_data(piece)
                    except httptools.HttpParserUpgrade as upgrade:
                        # The protocol that the caller offers is not spoken: its bytes are HTTP.
                        piece = piece[upgrade.args[0] :]
                        if self._is_offer:
                            self._begin_offered_body()
                        continue
                except httptools.HttpParserError as exc:
                    fault = exc.__context__
                    if not isinstance(fault, Fault):
                        error = InvalidRequest("This is not valid HTTP/1.1.")
                        fault = Fault(ClosingReason.MALFORMED, error)
                    self.refuse(fault.reason, fault.error)
                    break
                if max(self._bodyless_bytes, self._surplus_bytes) > MAX_HEADER_BYTES:
                    self._refuse_size()
                break

    def _begin_offered_body(self) -> None:
        """Parses the body of a request that offers another protocol (RFC 9110, section 7.8).

        A parser that has seen the offer takes the body for the other protocol. A new one gets the
        framing of the same head without the offer; it raises `HttpParserError` if that is unusable.
        """
        head = [b"POST / HTTP/%b\r\n" % self._parser.get_http_version().encode()]
        for name, value in self._headers:
            if name in _FRAMING:
                head += (name, b": ", value, b"\r\n")
        self._parser = _make_parser(self)
        self._parser.feed_data(b"".join((*head, b"\r\n")))
        self._is_offer = False

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer
        if len(self._headers) >= MAX_HEADERS:
            message = f"A request has at most {MAX_HEADERS} headers."
            raise Fault(ClosingReason.HEAD_SIZE, HeadersTooLarge(message))
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def read_head(self) -> dict[str, Any]:
        """Returns the scope of the request whose head has arrived; raises :class:`Fault`."""
        _check_head(self._parser, self._url, self._headers, self._bodyless_bytes)
        self._is_offer = self._parser.should_upgrade() and _has_body(self._headers)
        if self._is_offer and self._parser.get_method() == b"CONNECT":
            raise Fault(
                ClosingReason.UPGRADE, InvalidRequest("This is no proxy: CONNECT is not served.")
            )
        split = _recall_url if len(self._url) <= _SHORT_URL_BYTES else _split_url
        path, raw_path, query = split(self._url)
        if self._has_head_deadline:
            self._has_head_deadline = False
            self._worker.heads.stop(self)
        self._is_in_head = False
        self.body_bytes = 0
        return {
            "type": "http",
            "asgi": _ASGI,
            "http_version": self._parser.get_http_version(),
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "method": self._parser.get_method().decode("ascii"),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
        }

    def on_body(self, body: bytes) -> None:
        assert self._cycle is not None
        self.body_bytes += len(body)
        self._bodyless_bytes = 0
        self._surplus_bytes -= 2 * len(body)
        self._cycle.feed(body)

    def on_message_complete(self) -> None:
        if self._is_offer:
            return  # the body is still to come
        assert self._cycle is not None
        self._is_in_head = True
        self._bodyless_bytes = self._surplus_bytes = 0
        self._cycle.feed_end()

    def _refuse_size(self) -> None:
        if self._is_in_head:
            self.refuse(ClosingReason.HEAD_SIZE, HeadersTooLarge())
        else:
            message = "The trailers or the extensions of the chunks are too large."
            self.refuse(ClosingReason.FRAMING_SIZE, HeadersTooLarge(message))

    def stop_deadlines(self) -> None:
        self._worker.heads.stop(self)
        self._worker.resting.stop(self)
        self._has_head_deadline = False

    def _start_head_deadline(self) -> None:
        self._has_head_deadline = True
        self._worker.heads.start(self)

    def _await_head(self) -> None:
        """Gives a head that has begun its time, once it is the caller's turn."""
        if (
            self._bodyless_bytes
            and self._is_in_head
            and not self._has_head_deadline
            and self._discarded_bytes is None
            and self.is_callers_turn()
        ):
            self._start_head_deadline()

    def expire_rest(self) -> None:
        """Closes a connection on which no other request has come."""
        self.transport.close()

    def expire_head(self) -> None:
        """Ends a connection whose head has not arrived in time."""
        self._has_head_deadline = False
        if self._bodyless_bytes:
            message = "The head of the request did not arrive in time."
            self.refuse(ClosingReason.HEAD_TIMEOUT, RequestTimeout(message))
        elif not self.transport.is_closing():
            # No request was begun, so no response is due: a client might take it for another's.
            self._worker.refusals.count(ClosingReason.IDLE, self._host)
            self.transport.close()


def _make_parser(callbacks: BoundedParser) -> Any:
    """Returns a parser; what follows a request that ends the connection is discarded instead."""
    parser = httptools.HttpRequestParser(callbacks)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _split_url(url: bytes) -> tuple[str, bytes, bytes]:
    """Returns the path of a request's URL in plain and in raw form, and its query."""
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


# Most requests have one of a few URLs.
_recall_url: Final = lru_cache(maxsize=128)(_split_url)


def _check_head(parser: Any, url: bytes, headers: Headers, received: int) -> None:
    """Refuses a head that has just ended; ``received`` bytes or fewer belong to it."""
    if received > MAX_HEADER_BYTES:
        size = len(url) + sum(len(name) + len(value) + 4 for name, value in headers)
        if size > MAX_HEADER_BYTES:
            raise Fault(ClosingReason.HEAD_SIZE, HeadersTooLarge())
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 and (hosts or parser.get_http_version() != "1.0"):
        raise Fault(ClosingReason.HOST, InvalidRequest("Send exactly one Host header."))


def _has_body(headers: Headers) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in headers
    )


class UnreadWatch:
    """Checks whether the caller of one connection reads what waits for it."""

    __slots__ = ("_connection", "_timer", "checks")

    def __init__(self, connection: HttpProtocol) -> None:
        self._connection: HttpProtocol | None = connection
        self._timer: asyncio.TimerHandle | None = None
        # How often the caller was looked at since its request began.
        self.checks = 0

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
        self.checks += 1
        # A running response to a recognized caller has its own time limits.
        if connection.is_responding() and not connection.is_recognized:
            is_stuck = self.checks >= _STRANGER_CHECKS
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


class HttpProtocol(BoundedParser):
    """One connection of a caller, within the bounds that the module names.

    Uvicorn's server makes it, and calls :meth:`shutdown`.
    """

    __slots__ = (
        "_answered", "_application", "_is_ending", "_is_lost", "_pipeline", "_unread",
        "_waiting_refusal", "ends_at", "held_bytes", "is_recognized", "notes", "pools",
    )  # fmt: skip

    def __init__(self, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self._application = config.loaded_app
        self.is_recognized = False
        self.held_bytes = 0
        self.pools: tuple[ConnectionGroup, ...] = ()
        self.notes: dict[str, Any] = {}
        self._is_ending = False
        self.ends_at = 0.0
        self._waiting_refusal: bytes | None = None
        self._is_lost = False
        self._unread = UnreadWatch(self)
        # The request that is being answered, and those that arrived after it.
        self._answered: Cycle | None = None
        self._pipeline: deque[tuple[Cycle, dict[str, Any]]] = deque()

    # The connection

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.server_state.connections.add(self)  # type: ignore[arg-type]
        reason = self._worker.table.admit(self, self._host)
        if reason is None:
            self._start_head_deadline()
        elif self._worker.may_refuse_another():
            self._worker.refusals.count(reason, self._host)
            self._send_last(render_refusal(_limit_error(reason)))
        else:
            self._worker.refusals.count(reason, self._host)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self.server_state.connections.discard(self)
        self._unread.end()
        self.stop_deadlines()
        self._worker.table.remove(self)
        if self._answered is not None:
            self._answered.disconnect()
        self.flow.resume_writing()
        # All of these lead back to this object: without them it is freed at once.
        self._parser = self._cycle = self._answered = None
        self._pipeline.clear()

    def shutdown(self) -> None:
        """Ends the connection after the requests that have arrived."""
        if self._cycle is None or self._cycle.response_complete:
            self.transport.close()
        else:
            self._cycle.keep_alive = False
        self._unread.look()

    def count_unread(self) -> int:
        return self._unread.count_unread()

    def recognize(self) -> None:
        """Notes that the caller is known, so that no stranger takes its place; thread-safe."""
        if self.is_recognized:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a thread of Django
            self.loop.call_soon_threadsafe(self.recognize)
        else:
            self._worker.table.recognize(self)
            self.is_recognized = True
            if self.is_callers_turn():
                self._worker.table.rest(self)

    def is_callers_turn(self) -> bool:
        return self._answered is None or self._answered.response_complete

    def is_responding(self) -> bool:
        cycle = self._answered
        return cycle is not None and cycle.response_started and not cycle.response_complete

    def evict(self, reason: ClosingReason) -> None:
        self._worker.table.remove(self)
        self.stop_deadlines()
        if self._is_lost or self.transport.is_closing():
            return
        self._worker.refusals.count(reason, self._host)
        self._discarded_bytes = 0
        cycle = self._answered
        is_answered = cycle is None or cycle.response_complete
        if cycle is not None:
            cycle.disconnect()
        if self._is_ending or self.transport.get_write_buffer_size() or self.is_responding():
            self.transport.abort()
            return
        if not (is_answered and self._is_in_head and not self._bodyless_bytes):
            self.transport.write(render_refusal(_limit_error(ClosingReason.CONNECTION_LIMIT)))
        self.transport.close()

    # Incoming data

    def data_received(self, data: bytes) -> None:
        self._worker.resting.stop(self)
        if self._discarded_bytes is not None:
            self._discard(len(data))
            return
        if self._has_head_deadline and not self._bodyless_bytes:
            self._start_head_deadline()
        if not self.is_recognized:
            self._worker.table.hold(self, len(data))
        self.parse(data)
        self._await_head()
        self._unread.look()

    def on_headers_complete(self) -> None:
        if self._is_offer:
            return  # the head was read before
        if len(self._pipeline) >= MAX_WAITING_REQUESTS:
            message = "Too many requests wait on this connection. Wait for their responses."
            raise Fault(ClosingReason.PIPELINE, TooManyRequests(message, headers=_SOON))
        scope = self.read_head()
        is_old = scope["http_version"] in ("0.9", "1.0")
        is_kept = not is_old and self._parser.should_keep_alive()
        cycle = self._cycle = scope["causeway.cycle"] = Cycle(
            self,
            method=scope["method"],
            keep_alive=is_kept and not readiness.is_draining,
            expects_continue=self._expects_continue and not is_old,
            may_chunk=not is_old,
        )
        if self.is_callers_turn():
            self._serve(cycle, scope)
        else:
            self.flow.pause_reading()
            self._pipeline.append((cycle, scope))
            if not self.is_recognized:
                self._worker.table.hold(self, _WAITING_REQUEST_BYTES)

    # Deadlines

    def expire_body(self) -> None:
        """Refuses a request whose body does not arrive in time."""
        message = (
            "The body of the request did not arrive in time: it has "
            f"{settings.REQUEST_BODY_TIMEOUT:g} seconds, and must not stall."
        )
        self.refuse(ClosingReason.BODY_TIMEOUT, RequestTimeout(message))

    def stop_deadlines(self) -> None:
        super().stop_deadlines()
        self._worker.endings.stop(self)

    def make_body_clock(self) -> BodyClock:
        return BodyClock(self.loop, settings.REQUEST_BODY_TIMEOUT, self.expire_body)

    # Requests and responses

    def _serve(self, cycle: Cycle, scope: dict[str, Any]) -> None:
        self._answered = cycle
        self._unread.checks = 0
        if self.is_recognized:
            self._worker.table.begin(self)
        cycle.start(self._application, scope)

    def end_response(self, cycle: Cycle) -> None:
        """Begins to answer the next request, waits for one, or ends the connection."""
        self.server_state.total_requests += 1
        if not cycle.keep_alive:
            if cycle.is_unread:
                self._send_last(b"")
            else:
                self.transport.close()
        elif self._waiting_refusal is not None and not self._pipeline:
            self._send_last(self._waiting_refusal)
        elif not self.transport.is_closing():
            self.flow.resume_reading()
            if self._pipeline:
                self._serve(*self._pipeline.popleft())
            else:
                self._worker.resting.start(self)
            self._await_head()
        if self.is_callers_turn():
            self._worker.table.rest(self)
        self._unread.look()

    # Refusals

    def refuse(self, reason: ClosingReason, error: GatewayError) -> None:
        """Refuses the arriving request, after the responses to the earlier ones, and ends."""
        if self.transport.is_closing() or self._discarded_bytes is not None:
            return
        self._worker.refusals.count(reason, self._host)
        response = render_refusal(error)
        answered = self._answered
        if not self._is_in_head and self._cycle is not answered:
            self._pipeline.pop()
        elif not self._is_in_head and answered is not None:
            if answered.response_started:
                self.transport.abort()
                return
            answered.disconnect()
            self._send_last(response)
            return
        if answered is None or answered.response_complete:
            self._send_last(response)
        else:
            self._discarded_bytes = 0
            self._waiting_refusal = response

    def _send_last(self, response: bytes) -> None:
        """Sends the last response, ends our side, and discards what still arrives.

        A connection that is closed while bytes of the caller wait in the kernel is reset, and the
        caller loses the response.
        """
        if self.transport.is_closing():
            return
        self._pipeline.clear()
        self.stop_deadlines()
        self._discarded_bytes = self._discarded_bytes or 0
        self._is_ending = True
        if response:
            self.transport.write(response)
        self.transport.write_eof()
        self.flow.resume_reading()
        self._worker.start_ending(self)
        self._worker.table.rest(self)

    def _discard(self, count: int) -> None:
        assert self._discarded_bytes is not None
        self._discarded_bytes += count
        if self._discarded_bytes > self._worker.most_discarded:
            self.transport.abort()
        elif self._is_ending:
            self._worker.continue_ending(self)

    def expire_ending(self) -> None:
        """Closes a connection whose caller is silent after its last response."""
        if self.transport.get_write_buffer_size():
            # The caller still reads; the watch ends the connection if it does not.
            self._worker.start_ending(self)
        else:
            self.transport.abort()

    def end_stuck(self) -> None:
        self._worker.refusals.count(ClosingReason.STUCK, self._host)
        self.transport.abort()


def _limit_error(reason: ClosingReason) -> GatewayError:
    if reason is ClosingReason.ADDRESS_LIMIT:
        message = "Too many connections from this address. Close some, or try again shortly."
        return TooManyRequests(message, headers=_SOON)
    return Unavailable("Too many connections. Try again shortly.")
