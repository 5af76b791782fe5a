"""One request of an inference route: reads it and sends its response over ASGI."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import msgspec

from catalog.dialects.base import Operation
from catalog.dialects.shared.raw import Piece
from catalog.operations import OPERATIONS
from config.api.errors import GatewayError
from config.live_settings import settings
from config.server.bodies import (
    Message,
    Receive,
    Scope,
    Send,
    body_length,
    mark_recognized,
    read_body,
)
from config.server.bulkheads import Occupancy
from config.server.connections.cycle import Cycle
from config.telemetry.access_log import ENTRY, AccessEntry
from inference.admission.copies.presets import PresetReader
from inference.admission.recognition import RecognizedKey
from inference.exchange.gateway import CallerStuck
from inference.exchange.workload import Workload
from inference.faces.head import RequestHead
from inference.faces.waiting import Keepalive, Patience, read_patience
from inference.requests import parsing
from inference.requests.limits import is_large
from inference.requests.operations.presets import (
    Preset,
    find_preset_name,
    may_name_preset,
    name_models,
    require_usable,
)
from inference.requests.parsing import InferenceRequest

# The comment that a quiet stream sends, so that proxies do not close it.
_KEEPALIVE: Final = b": CAUSEWAY PROCESSING\n\n"
_END: Final[Message] = {"type": "http.response.body", "body": b""}
# A long answer is sent in pieces of this size, each when the caller has read the ones before.
_PIECE_BYTES: Final = 262_144
# How long a caller may leave a piece of an answer unread.
_STUCK_SECONDS: Final = 30.0


class Connection(RequestHead):
    """Reads one request and sends its response, both in the format of OpenAI's interface.

    Subclasses speak other formats.
    """

    # What is sent into quiet streams.
    comments: ClassVar = frozenset((_KEEPALIVE,))
    # True for a route that counts the tokens of a request and sends nothing upstream.
    is_count: ClassVar = False
    # Set once the caller is recognized.
    workload: Workload
    _patience, _since = Patience(), 0.0
    # The caller waits no longer.
    is_late = False
    caller: RecognizedKey
    presets: PresetReader

    def __init__(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self.operation = operation
        self._receive, self._send = receive, send
        self._cycle: Cycle = scope["causeway.cycle"]
        self.access_entry: AccessEntry | None = scope.get(ENTRY)
        self.generation_id = ""
        self.rate_headers: Mapping[str, str] | None = None
        self.preset: Preset | None = None
        # What the request offered and the model was not told of.
        self.left_out: tuple[str, ...] = ()
        # Names what is not sent to the candidate that answers, once there is one.
        self.name_left_out: Callable[[], list[str]] | None = None
        # The status was sent; and an event, not only comments.
        self.has_begun = self._has_events = False
        self._late_timer: asyncio.TimerHandle | None = None
        self._keepalive: Keepalive | None = None

    def mark_recognized(self) -> None:
        """Tells the server that the caller is known."""
        mark_recognized(self._scope)

    async def read_request(self, occupancy: Occupancy) -> InferenceRequest:
        """Reads and parses the request's body.

        Raises :class:`PayloadTooLarge`, the refusals of budgets, and :class:`InvalidRequest`. No
        caller of this method keeps the body, so that the exchange can free it.
        """
        body = await read_body(self._receive, occupancy, body_length(self._scope))
        rest = body
        if OPERATIONS[self.operation].is_written and (is_large(body) or may_name_preset(body)):
            rest = await self._take_preset(body)
        # Repeats are recognized by what the caller sent, whatever its preset says.
        request = await self.workload.run(len(body), self.parse_body, body, rest)
        self.left_out = request.left_out
        return request

    def parse_body(self, body: bytes, rest: bytes | None = None) -> InferenceRequest:
        """Parses the request's body, and notes by what its repeats are recognized.

        ``rest`` is the body without the name of a preset.
        """
        request = self.parse(body if rest is None else rest)
        self.note_body(body)
        return request

    def parse(self, body: bytes) -> InferenceRequest:
        """Parses the request's body; raises :class:`InvalidRequest`."""
        session_id = self.header(b"x-session-id")
        return parsing.parse(self.operation, body, session_id=session_id, preset=self.preset)

    async def _take_preset(self, body: bytes) -> bytes:
        """Finds the preset that a body names, and returns the body without the name."""
        named = await self.workload.run(len(body), find_preset_name, body)
        if named is None:
            return body
        self.preset = require_usable(named, await self.presets.find(self.caller.key_id, named.slug))
        return name_models(named, self.preset)

    def rewrite_reply(self, reply: list[Piece]) -> list[Piece]:
        """Returns the pieces of a whole reply in the format of the interface."""
        return reply

    def error_body(self, error: GatewayError) -> dict[str, Any]:
        """Returns the body of an error in the format of the interface."""
        return error.body()

    def divert(self, way: Callable[[Send, Callable[[], None]], Send]) -> None:
        """Sends the response by another way.

        ``way`` returns it for the present one, and for a function that closes the connection.
        """
        self._send = way(self._send, self._cycle.abort)

    def read_patience(self, *, is_stream: bool) -> None:
        """Reads how long the caller waits; raises :class:`InvalidRequest`."""
        self._patience = read_patience(self.header, is_stream=is_stream)
        self._since = time.monotonic()

    def watch_caller(self) -> None:
        """Cancels the work from now on when the caller disconnects, or waits no longer."""
        self._cycle.watch()
        if (seconds := self._patience.count_left(self._since)) is not None:
            self._late_timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.is_late = True
        self._cycle.expire()

    def unwatch_caller(self) -> bool:
        """Ends the watch and the comments; returns whether it has cancelled the work."""
        if self._keepalive is not None:
            self._keepalive.stop()
        if self._late_timer is not None:
            self._late_timer.cancel()
        return self._cycle.unwatch()

    async def respond(
        self, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None
    ) -> None:
        """Sends a whole JSON response."""
        await self.respond_pieces(status, [body], headers)

    async def respond_pieces(
        self,
        status: int,
        pieces: list[Piece],
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        """Sends a whole response; a long one as fast as the caller reads it.

        It is JSON unless ``headers`` name another type. Raises :class:`CallerStuck` if the caller
        does not read for 30 seconds.
        """
        self.has_begun = True
        fields = dict(headers or ())
        kind = fields.pop(b"content-type", b"application/json")
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", kind),
                    (b"content-length", str(sum(map(len, pieces))).encode()),
                    *self.common_headers(),
                    *fields.items(),
                ],
            }
        )
        *parts, last = _slice(pieces)
        for part in parts:
            message = {"type": "http.response.body", "body": part, "more_body": True}
            await self._send_while_read(message)
        await self._send({"type": "http.response.body", "body": last})

    async def _send_while_read(self, message: Message) -> None:
        """Sends a piece; raises :class:`CallerStuck` when the caller reads none of the last ones.

        The kernel takes a piece only when much of its buffer is free, so a slow caller is seen to
        read by the bytes that are left.
        """
        unread = self._cycle.count_unread()
        sending = asyncio.ensure_future(self._send(message))
        try:
            while not (await asyncio.wait((sending,), timeout=_STUCK_SECONDS))[0]:
                left = self._cycle.count_unread()
                if left >= unread:
                    raise CallerStuck
                unread = left
            sending.result()
        finally:
            sending.cancel()

    async def respond_error(self, error: GatewayError) -> None:
        """Sends an error in the envelope, unless a response has begun."""
        if self.has_begun:
            return
        headers = [
            (name.lower().encode(), value.encode("latin-1"))
            for name, value in error.headers.items()
        ]
        await self.respond(error.status, msgspec.json.encode(self.error_body(error)), headers)

    async def send_events(self, data: bytes) -> None:
        """Sends events; the first call also sends the status 200, if no comment has."""
        self._has_events = True
        await self._send_part(data)

    async def _send_part(self, data: bytes) -> None:
        if self._keepalive is not None:
            self._keepalive.is_busy = True
        if not self.has_begun:
            self.has_begun = True
            await self._send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [
                        (b"content-type", b"text/event-stream; charset=utf-8"),
                        (b"cache-control", b"no-cache"),
                        (b"x-accel-buffering", b"no"),
                        *self.common_headers(),
                    ],
                }
            )
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        if self._keepalive is not None:
            self._keepalive.is_busy = False
            self._keepalive.last_sent = time.monotonic()

    # An exchange renders events in the format of chat, so this class need not rewrite them.
    deliver = send_events

    async def end_events(self) -> None:
        """Ends a stream; raises :class:`CallerStuck` if the caller does not read its end."""
        if self._keepalive is not None:
            self._keepalive.stop()
        if self._cycle.is_read:
            return await self._send(_END)
        try:
            async with asyncio.timeout(settings.HOLD_TIMEOUT):
                await self._send(_END)
        except TimeoutError:
            raise CallerStuck from None

    def begin_comments(self) -> None:
        """Keeps a stream alive from now on; the first comment also sends the status 200."""
        self._keepalive = Keepalive(self._send_comment, self._patience.silence)

    async def _send_comment(self) -> None:
        await self._send_part(self.make_comment())

    def make_comment(self) -> bytes:
        """Returns what is sent into a quiet stream."""
        return _KEEPALIVE

    async def abort(self) -> None:
        """Closes the connection in the middle of a response."""
        self._cycle.abort()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def common_headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-request-id", self.request_id.encode()), *self.cache_headers]
        if self.generation_id:
            headers.append((b"x-generation-id", self.generation_id.encode()))
        if self.rate_headers:
            headers += [(name.encode(), text.encode()) for name, text in self.rate_headers.items()]
        left_out = self.left_out if self.name_left_out is None else self.name_left_out()
        if left_out:
            headers.append((b"x-left-out", ", ".join(left_out).encode("ascii", "replace")))
        return headers


def _slice(pieces: list[Piece]) -> list[Piece]:
    """Returns at least one piece, and none that is long."""
    if len(pieces) == 1 and len(pieces[0]) <= _PIECE_BYTES:
        return pieces
    return [
        piece[start : start + _PIECE_BYTES]
        for piece in pieces
        for start in range(0, len(piece), _PIECE_BYTES)
    ] or [b""]
