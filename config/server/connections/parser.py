"""Parses what arrives on a connection within bounds on everything that is no body."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, Final, Literal
from urllib.parse import unquote

import httptools
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from config.api.errors import GatewayError, HeadersTooLarge, InvalidRequest, RequestTimeout
from config.server.connections.cycle import Cycle
from config.server.connections.refusals import Reason
from config.server.connections.registry import WorkerConnections

MAX_HEADER_BYTES: Final = 65_536
MAX_HEADERS: Final = 100

Headers = list[tuple[bytes, bytes]]

# What is parsed at once: a limit on bytes is exceeded by no more than this.
_PIECE_BYTES: Final = 65_536
# A longer URL is not remembered.
_SHORT_URL_BYTES: Final = 128
_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}


class Fault(Exception):
    """Stops the parser: the request is refused."""

    def __init__(self, reason: Reason, error: GatewayError) -> None:
        self.reason = reason
        self.error = error


class BoundedParser(asyncio.Protocol):
    """The parsing half of the HTTP protocol; the other half serves and refuses requests."""

    # Attributes in a dict would take twice the memory, for each of 10,000 connections.
    __slots__ = (
        "_bodyless_bytes", "_cycle", "_discarded_bytes", "_expects_continue", "_has_head_deadline",
        "_headers", "_host", "_is_in_head", "_parser", "_surplus_bytes", "_url", "_worker",
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
        self._parser: Any = httptools.HttpRequestParser(self)
        # What follows a request that ends the connection is not parsed but discarded.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
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

    def refuse(self, reason: Reason, error: GatewayError) -> None:
        """Refuses the arriving request; nothing more is parsed."""
        raise NotImplementedError

    def is_callers_turn(self) -> bool:
        """Tells whether no request of the connection is unanswered."""
        raise NotImplementedError

    def parse(self, data: bytes) -> None:
        """Parses what arrived, until a part of it is refused."""
        for start in range(0, len(data), _PIECE_BYTES):
            self._parse_piece(data[start : start + _PIECE_BYTES])

    def _parse_piece(self, data: bytes) -> None:
        while data and self._discarded_bytes is None:
            self._bodyless_bytes += len(data)
            self._surplus_bytes += len(data)
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # The protocol that the caller asks for is not spoken, so its bytes are HTTP.
                data = data[upgrade.args[0] :]
                continue
            except httptools.HttpParserError as exc:
                fault = exc.__context__
                if not isinstance(fault, Fault):
                    fault = Fault(Reason.MALFORMED, InvalidRequest("This is not valid HTTP/1.1."))
                self.refuse(fault.reason, fault.error)
                return
            if self._bodyless_bytes > MAX_HEADER_BYTES or self._surplus_bytes > MAX_HEADER_BYTES:
                self._refuse_size()
            return

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer
        _require_room(self._headers)
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True
        self._headers.append((name, value))

    def read_head(self) -> dict[str, Any]:
        """Returns the scope of the request whose head has arrived; raises :class:`Fault`."""
        _check_head(self._parser, self._url, self._headers, self._bodyless_bytes)
        path, raw_path, query = _split_url(self._url)
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
        assert self._cycle is not None
        self._is_in_head = True
        self._bodyless_bytes = self._surplus_bytes = 0
        self._cycle.feed_end()

    def _refuse_size(self) -> None:
        if self._is_in_head:
            self.refuse(Reason.HEAD_SIZE, HeadersTooLarge())
        else:
            message = "The trailers or the extensions of the chunks are too large."
            self.refuse(Reason.FRAMING_SIZE, HeadersTooLarge(message))

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
            self.refuse(Reason.HEAD_TIMEOUT, RequestTimeout(message))
        elif not self.transport.is_closing():
            # No request was begun, so no response is due: a client might take it for another's.
            self._worker.refusals.count(Reason.IDLE, self._host)
            self.transport.close()


def _split_url(url: bytes) -> tuple[str, bytes, bytes]:
    """Returns the path of a request's URL in plain and in raw form, and its query."""
    return _recall_url(url) if len(url) <= _SHORT_URL_BYTES else _parse_url(url)


def _parse_url(url: bytes) -> tuple[str, bytes, bytes]:
    parsed = httptools.parse_url(url)
    path = parsed.path.decode("ascii")
    return unquote(path) if "%" in path else path, parsed.path, parsed.query or b""


# Most requests have one of a few URLs.
_recall_url: Final = lru_cache(maxsize=128)(_parse_url)


def _require_room(headers: Headers) -> None:
    """Refuses one more header than a request may have."""
    if len(headers) >= MAX_HEADERS:
        message = f"A request has at most {MAX_HEADERS} headers."
        raise Fault(Reason.HEAD_SIZE, HeadersTooLarge(message))


def _check_head(parser: Any, url: bytes, headers: Headers, received: int) -> None:
    """Refuses a head that has just ended; ``received`` bytes or fewer belong to it."""
    if received > MAX_HEADER_BYTES:
        size = len(url) + sum(len(name) + len(value) + 4 for name, value in headers)
        if size > MAX_HEADER_BYTES:
            raise Fault(Reason.HEAD_SIZE, HeadersTooLarge())
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) != 1 and (hosts or parser.get_http_version() != "1.0"):
        raise Fault(Reason.HOST, InvalidRequest("Send exactly one Host header."))
    if parser.should_upgrade() and _has_body(headers):
        # The parser takes the body for the other protocol, and it would become a request.
        message = "No other protocol is spoken here. Send the request without 'Upgrade'."
        raise Fault(Reason.UPGRADE, InvalidRequest(message))


def _has_body(headers: Headers) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
        for name, value in headers
    )
