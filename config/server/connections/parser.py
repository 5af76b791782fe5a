"""Parses what arrives on a connection within bounds on everything that is no body."""

from __future__ import annotations

from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from config.api.errors import GatewayError, HeadersTooLarge, InvalidRequest, RequestTimeout
from config.server.connections.heads import MAX_HEADER_BYTES, Fault, check_head, require_room
from config.server.connections.refusals import Reason
from config.server.connections.registry import WorkerConnections

# What is parsed at once: a limit on bytes is exceeded by no more than this.
_PIECE_BYTES: Final = 65_536


class BoundedParser(HttpToolsProtocol):
    """The parsing half of uvicorn's protocol; the other half serves and refuses requests."""

    # More attributes in the instance's dict would double its size, for each of 10,000 connections.
    __slots__ = (
        "_bodyless_bytes",
        "_discarded_bytes",
        "_has_head_deadline",
        "_host",
        "_is_in_head",
        "_surplus_bytes",
        "_worker",
        "body_bytes",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._worker = WorkerConnections.of(self.app_state, self.loop)
        self._host = ""
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
                self.parser.feed_data(data)
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

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer
        require_room(self.headers)
        # As uvicorn does; calling its method would double the cost of each header.
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        check_head(self.parser, self.url, self.headers, self._bodyless_bytes)
        super().on_headers_complete()
        if self._has_head_deadline:
            self._has_head_deadline = False
            self._worker.heads.stop(self)
        self._is_in_head = False
        self.body_bytes = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self.body_bytes += len(body)
        self._bodyless_bytes = 0
        self._surplus_bytes -= 2 * len(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_in_head = True
        self._bodyless_bytes = self._surplus_bytes = 0

    def _refuse_size(self) -> None:
        if self._is_in_head:
            self.refuse(Reason.HEAD_SIZE, HeadersTooLarge())
        else:
            message = "The trailers or the extensions of the chunks are too large."
            self.refuse(Reason.FRAMING_SIZE, HeadersTooLarge(message))

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
