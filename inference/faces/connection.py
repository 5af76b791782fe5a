"""One request of an inference route: reads it and sends its response over ASGI."""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from hmac import compare_digest
from typing import Any, ClassVar, Final, NamedTuple

import msgspec

from accounts.bearers import key_digests
from catalog.dialects.base import Operation
from catalog.dialects.shared.raw import Piece
from catalog.dialects.shared.sse import escape_line_ends
from catalog.operations import OPERATIONS
from config.api.errors import GatewayError, InvalidRequest, RequestTimeout, Unauthenticated
from config.api.idempotency import HEADER, require_idempotency_key
from config.api.text import write_header, write_list
from config.live_settings import settings
from config.secrets import KeyDigests
from config.server import logs
from config.server.bodies import Message, Receive, Scope, Send, body_length, read_body
from config.server.bulkheads import Occupancy
from config.server.connections.cycle import Cycle
from config.server.load.large_work import LARGE_BYTES
from config.telemetry.access_log import ENTRY, AccessEntry
from config.telemetry.tracing import NO_ATTRIBUTES, Attributes
from inference.admission.copies.presets import PresetReader
from inference.admission.recognition import RecognizedKey
from inference.exchange.gateway import CallerStuck
from inference.exchange.tap import KnownAnswer
from inference.exchange.workload import Workload
from inference.filters.screening import measure
from inference.requests import parsing
from inference.requests.multipart import MAX_PARTS, is_form, read_boundary
from inference.requests.operations.presets import (
    PRESET_MARKS,
    AppliedPreset,
    find_preset_name,
    name_models,
    require_usable,
)
from inference.requests.parsing import InferenceRequest

# The shortest pause between two comments, whatever a caller says that it bears.
_SHORTEST_INTERVAL: Final = 0.5
# What clients tell about the silence that they bear: those in Python, and those in TypeScript.
_TIMEOUT: Final = b"x-request-timeout"
_SILENCES: Final = (b"x-stainless-read-timeout", b"x-stainless-timeout")
_PATIENCES: Final = (_TIMEOUT, *_SILENCES)
_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")

IDEMPOTENCY_KEY: Final = b"idempotency-key"
# The SDKs of OpenAI and Anthropic count here how often they have sent a request before.
RETRY_COUNT: Final = b"x-stainless-retry-count"
_AUTHORIZATION: Final = b"authorization"
_API_KEY: Final = b"x-api-key"
ENCODING: Final = b"content-encoding"
# The note of a connection about the key that it has sent last.
_KEY_NOTE: Final = "key"
# These headers change what is answered, beside the body.
_SESSION: Final = b"x-session-id"
_ANTHROPIC: Final = b"anthropic-"

# The comment that a quiet stream sends, so that proxies do not close it.
_KEEPALIVE: Final = b": CAUSEWAY PROCESSING\n\n"
_END: Final[Message] = {"type": "http.response.body", "body": b""}
# A long answer is sent in pieces of this size, each when the caller has read the ones before.
_PIECE_BYTES: Final = 262_144


class CallerLate(RequestTimeout):
    """The caller waits no longer; a repetition would take as long again."""

    is_final = True
    message = (
        "The time limit of the request itself is over: X-Request-Timeout, or the timeout of the "
        "SDK. Allow more time."
    )


class Patience(NamedTuple):
    """The seconds in all that a caller waits for an answer, and those of silence in a stream."""

    in_all: float | None = None
    silence: float = math.inf


def read_patience(header: Callable[[bytes], str | None], *, is_stream: bool) -> Patience:
    """Returns what the headers of a request say about the time that its caller waits.

    ``X-Request-Timeout`` is the whole time, of a stream too. Raises :class:`InvalidRequest` for
    what is no number of seconds above 0. What the clients of OpenAI and Anthropic tell about
    themselves is the longest silence that they bear: a plain answer is silent until it comes, and
    a stream is kept alive with comments that come sooner.
    """
    in_all: float | None = None
    silence = math.inf
    if (text := header(_TIMEOUT)) is not None and not (in_all := _read_seconds(text)):
        raise InvalidRequest(
            "X-Request-Timeout: Must be a number of seconds above 0, such as 120 or 2.5."
        )
    for name in _SILENCES:
        if (told := header(name)) is not None and (seconds := _read_seconds(told)):
            silence = min(silence, seconds)
    if is_stream or silence == math.inf:
        return Patience(in_all, silence)
    return Patience(silence if in_all is None else min(in_all, silence))


def _read_seconds(text: str) -> float:
    return float(text) if _SECONDS.fullmatch(text) else 0.0


async def _send_nothing() -> None:
    """Stands for the stream of a keepalive that has stopped."""


class Keepalive:
    """Sends a comment into one stream each time that it was quiet for a while.

    ``is_busy`` says that the stream is being written: comments would queue behind events that a
    slow caller has not read. ``last_sent`` is the monotonic time at which it was written last.
    """

    __slots__ = ("_most", "_send", "_task", "_timer", "is_busy", "last_sent")

    def __init__(self, send: Callable[[], Awaitable[None]], silence: float) -> None:
        """Begins at once; ``silence`` is what the caller bears, of which half may pass."""
        self._send = send
        self._most = max(silence / 2, _SHORTEST_INTERVAL)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_busy = False
        self.last_sent = time.monotonic()
        self._look()

    def stop(self) -> None:
        """Sends no further comment, and forgets the stream: it refers to this object, too."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send = _send_nothing

    def _look(self) -> None:
        """Sends a comment when the stream has been quiet, and schedules the next look."""
        interval = min(settings.STREAM_KEEPALIVE_INTERVAL, self._most)
        if not interval:
            return
        loop = asyncio.get_running_loop()
        left = interval
        if not self.is_busy:
            left = self.last_sent + interval - time.monotonic()
            if left <= 0:
                self._task = loop.create_task(self._send_comment())
                left = interval
        self._timer = loop.call_later(left, self._look)

    async def _send_comment(self) -> None:
        if self._timer is not None:
            await self._send()


class RequestHead:
    """The method, the path and the headers of one request; reads what they say of its caller."""

    # What the span of the request says of its generation, and of its error.
    span_attributes: Attributes = NO_ATTRIBUTES
    error_type: str | None = None

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._raw_headers: list[tuple[bytes, bytes]] = scope["headers"]
        # The first header of each name.
        self._first_headers = dict(reversed(self._raw_headers))
        self._has_repeats = len(self._first_headers) < len(self._raw_headers)
        self.header_names: Set[bytes] = self._first_headers.keys()
        self._server = scope.get("server")
        self.request_id = logs.new_request_id(self.header(b"x-request-id"))
        self.is_repeatable = IDEMPOTENCY_KEY in self._first_headers
        # Whether the body is digested; set before it is read.
        self.is_digested = False
        # Whether the response cache shall be used; ``None`` leaves it to the workspace.
        self.wants_cache: bool | None = None
        self.digest = b""
        self.body_hash = 0
        # The headers of the answer that say what the response cache did.
        self.cache_headers: tuple[tuple[bytes, bytes], ...] = ()

    def digests(self) -> KeyDigests:
        """Returns the digests of the caller's key; raises :class:`Unauthenticated`.

        Most connections send the same key again: its digests are kept while the connection lasts.
        """
        notes, first = self._scope["causeway.cycle"].notes, self._first_headers
        # No value has a line end, which stands for a header that is missing.
        told = b"%b\n%b" % (first.get(_AUTHORIZATION, b"\n"), first.get(_API_KEY, b"\n"))
        known: tuple[bytes, KeyDigests] | None = notes.get(_KEY_NOTE)
        if known is not None and not self._has_repeats and compare_digest(known[0], told):
            return known[1]
        authorization = self._single_header(_AUTHORIZATION, "Send one Authorization header.")
        api_key = self._single_header(_API_KEY, "Send one x-api-key header.")
        digests = key_digests(authorization, api_key)
        notes[_KEY_NOTE] = told, digests
        return digests

    def host(self) -> str:
        """Returns the host as Django reads it; several hosts are joined, which no host matches."""
        host: bytes | None = self._first_headers.get(b"host")
        if host is None:
            return str(self._server[0]) if self._server else ""
        if self._has_repeats:
            host = b",".join(self._headers(b"host"))
        return host.decode("latin-1")

    def idempotency_key(self) -> str:
        """Returns the one ``Idempotency-Key``; raises :class:`InvalidRequest`."""
        values = self._headers(IDEMPOTENCY_KEY)
        if len(values) > 1:
            raise InvalidRequest(f"{HEADER}: send one such header.")
        return require_idempotency_key(values[0].decode("latin-1"))

    def note_body(self, body: bytes) -> None:
        """Notes what the repeats of the request have in common with it.

        A hash is enough for what is only told; a digest decides whose answer is given.
        """
        if self.is_digested:
            self.digest = self._digest(body)
        if RETRY_COUNT in self._first_headers:
            self.body_hash = hash(tuple(self._split(body)))

    def header(self, name: bytes) -> str | None:
        """Returns the first header of this name."""
        value: bytes | None = self._first_headers.get(name)
        if value is None:
            return None
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.decode("latin-1")

    def _single_header(self, name: bytes, message: str) -> str | None:
        values = self._headers(name)
        if len(values) > 1:
            raise Unauthenticated(message)
        return values[0].decode("latin-1") if values else None

    def _headers(self, name: bytes) -> list[bytes]:
        return [value for other, value in self._raw_headers if other == name]

    def _digest(self, body: bytes) -> bytes:
        """Returns a digest of the body, and of the headers that change its meaning."""
        found = hashlib.sha256()
        content_type = (self.header(b"content-type") or "").partition(";")[0].strip().lower()
        names = sorted(name for name in self._first_headers if name.startswith(_ANTHROPIC))
        texts = [content_type.encode(), self._first_headers.get(_SESSION)]
        for name in names:
            texts += (name, b", ".join(self._headers(name)))
        for text in (*texts, *self._split(body)):
            # The length comes first, so that no two lists of texts look the same.
            found.update(b"-" if text is None else b"%d:" % len(text))
            found.update(text or b"")
        return found.digest()

    def _split(self, body: bytes) -> list[bytes]:
        """Splits a form at its boundary, which a client chooses anew when it sends it again."""
        content_type = self.header(b"content-type") or ""
        if not is_form(content_type):
            return [body]
        try:
            return body.split(b"--" + read_boundary(content_type), MAX_PARTS + 1)
        except InvalidRequest:
            return [body]


class Connection(RequestHead):
    """Reads one request and sends its response, both in the format of OpenAI's interface.

    Subclasses speak other formats.
    """

    # What is sent into quiet streams.
    comments: ClassVar = frozenset((_KEEPALIVE,))
    # True for a route that counts the tokens of a request and sends nothing upstream.
    is_count: ClassVar = False
    # How often a body or a whole answer is in memory while it is put into another format.
    copies: ClassVar = 0
    # Set once the caller is recognized.
    workload: Workload
    _patience, _since = Patience(), 0.0
    # The caller waits no longer.
    is_late = False
    # The content type of an answer of bytes, once it is known.
    kind = b""
    caller: RecognizedKey
    presets: PresetReader

    def __init__(self, operation: Operation, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(scope)
        self.operation = operation
        self._receive, self._send = receive, send
        self._cycle: Cycle = scope["causeway.cycle"]
        # Tells the server that the caller is known.
        self.mark_recognized = self._cycle.recognize
        self.access_entry: AccessEntry | None = scope.get(ENTRY)
        self.generation_id = ""
        self.rate_headers: Mapping[str, str] | None = None
        self.preset: AppliedPreset | None = None
        # What the request asked for and the model was not told of; that of the latest attempt.
        self.left_out: Sequence[str] = ()
        # The status was sent; and an event, not only comments.
        self.has_begun = self._has_events = False
        self._late_timer: asyncio.TimerHandle | None = None
        self._keepalive: Keepalive | None = None

    async def read_request(self, occupancy: Occupancy) -> InferenceRequest:
        """Reads and parses the request's body.

        Raises :class:`PayloadTooLarge`, the refusals of budgets, and :class:`InvalidRequest`. No
        caller of this method keeps the body, so that the exchange can free it.
        """
        encoding = b",".join(self._headers(ENCODING)) if ENCODING in self.header_names else b""
        length = body_length(self._scope)
        body = await read_body(self._receive, occupancy, length, encoding=encoding)
        rest = body
        if OPERATIONS[self.operation].is_written and (
            len(body) > LARGE_BYTES or any(mark in body for mark in PRESET_MARKS)
        ):
            rest = await self.take_preset(body)
        # Repeats are recognized by what the caller sent, whatever its preset says.
        request = await self.workload.run(
            len(body), self.parse_body, body, rest, copies=self.copies
        )
        if self.copies and len(body) > LARGE_BYTES:
            # The request is kept in two formats.
            occupancy.reserve(max(measure(request) - len(body), 0))
        self.left_out = request.left_out
        return request

    def parse_body(self, body: bytes, rest: bytes | None = None) -> InferenceRequest:
        """Parses the request's body, and notes by what its repeats are recognized.

        ``rest`` is the body without the name of a preset.
        """
        request = self.parse(body if rest is None else rest)
        if self.is_digested or RETRY_COUNT in self.header_names:
            self.note_body(body)
        return request

    def parse(self, body: bytes) -> InferenceRequest:
        """Parses the request's body; raises :class:`InvalidRequest`."""
        session_id = self.header(b"x-session-id")
        return parsing.parse(self.operation, body, session_id=session_id, preset=self.preset)

    async def take_preset(self, body: bytes) -> bytes:
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
        if not self.header_names.isdisjoint(_PATIENCES):
            self._patience = read_patience(self.header, is_stream=is_stream)
        self._since = time.monotonic()

    def watch_caller(self) -> None:
        """Cancels the work from now on when the caller disconnects, or waits no longer."""
        self._cycle.watch()
        if self._patience.in_all is not None:
            # A caller who is watched again has waited before.
            seconds = max(self._since + self._patience.in_all - time.monotonic(), 0.0)
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
        if len(pieces) != 1 or len(pieces[0]) > _PIECE_BYTES:
            pieces = _slice(pieces)
        *parts, last = pieces
        for part in parts:
            message = {"type": "http.response.body", "body": part, "more_body": True}
            await self._send_while_read(message)
        await self._send({"type": "http.response.body", "body": last})

    async def _send_while_read(self, message: Message) -> None:
        """Sends a piece; raises :class:`CallerStuck` if the caller reads none of the last ones."""
        if not await self._cycle.send_while_read(self._send(message)):
            raise CallerStuck

    async def respond_error(self, error: GatewayError) -> None:
        """Sends an error in the envelope, unless a response has begun."""
        if self.has_begun:
            return
        headers = [
            (name.lower().encode(), write_header(value)) for name, value in error.headers.items()
        ]
        await self.respond(error.status, msgspec.json.encode(self.error_body(error)), headers)

    async def send_events(self, data: bytes) -> None:
        """Sends events; the first call also sends the status 200, if no comment has."""
        if not data.isascii():
            data = await self.workload.run(len(data), escape_line_ends, data)
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

    async def send_known(self, known: KnownAnswer) -> None:
        """Sends the events of a known answer as fast as the caller reads them.

        Raises :class:`CallerStuck` for one that takes longer than a generation may.
        """
        deliver = self.send_events if known.is_native else self.deliver
        try:
            async with asyncio.timeout(settings.HOLD_TIMEOUT):
                for events in _split_events(known.body):
                    await deliver(events)
        except TimeoutError:
            raise CallerStuck from None

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
        if self.left_out:
            headers.append((b"x-left-out", write_list(self.left_out)))
        return headers


def _split_events(body: memoryview) -> Iterator[bytes]:
    """Yields the parts of a stream, of whole events each: faces rewrite no other ones."""
    events = bytearray()
    for start in range(0, len(body), _PIECE_BYTES):
        # The end of an event may stand across two pieces.
        since = max(len(events) - 1, 0)
        events += body[start : start + _PIECE_BYTES]
        if (end := events.rfind(b"\n\n", since) + 2) > 1:
            yield bytes(events[:end])
            del events[:end]
    if events:
        yield bytes(events)


def _slice(pieces: list[Piece]) -> list[Piece]:
    """Returns at least one piece, and none that is long."""
    # A slice of a view is no copy.
    return [
        piece[start : start + _PIECE_BYTES]
        for piece in [memoryview(each) for each in pieces]
        for start in range(0, len(piece), _PIECE_BYTES)
    ] or [b""]
