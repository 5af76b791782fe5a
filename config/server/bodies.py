"""Bounds on the bodies of requests, and the types of ASGI.

A caller who is not recognized yet may send :data:`UNRECOGNIZED_BYTES`. What exceeds them is read
only for a recognized caller, and counted against its budgets before it is asked for.
"""

from __future__ import annotations

import io
import sys
import zlib
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

from django.utils.http import parse_header_parameters

from config.api.errors import GatewayError, InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from config.api.text import write_header
from config.live_settings import settings
from config.server.bulkheads import Occupancy
from config.server.load.large_work import LARGE_BYTES

_CODINGS: Final = "gzip, zstd"
# What one step reads and writes at most. It takes a thread about a millisecond, also if nothing
# comes of what it reads.
_PIECE_BYTES: Final = 65_536
_PART_BYTES: Final = 262_144
# A body is one member of gzip or one frame of zstd, or some of them. An empty one takes a step too.
_MAX_MEMBERS: Final = 1_000
# The whole format of gzip with its largest window, as zlib knows it.
_GZIP: Final = 31
# The largest window of the content coding (RFC 9659), as a power of two. Others take up to 2 GiB.
_WINDOW: Final = 23
_ZSTD: Final = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"

_TYPE_CHARACTERS: Final = 1_000
# The names of UTF-8, and of its part; none stands for it too.
_UTF8: Final = frozenset(("", "ascii", "us-ascii", "utf-8", "utf8", "utf_8"))

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]
# Finds the caller of a request; with a large body, which the second argument tells, it raises
# :class:`GatewayError` for an unknown caller.
FindCaller = Callable[[Scope, bool], Awaitable[Occupancy | None]]
# Returns the content type and the body of the answer to a refused request.
RenderRefusal = Callable[[Scope, GatewayError], tuple[str, bytes]]

# What a body that was read and decoded has not, or has anew.
_FRAMING: Final = frozenset((b"content-encoding", b"content-length", b"transfer-encoding"))
# The server buffers as much before anyone asks for it.
UNRECOGNIZED_BYTES: Final = 65_536

# What the texts of a request with a file may take beside it.
_TEXT_BYTES: Final = 1_048_576


def largest_file_body() -> int:
    """Returns the most bytes of a body with a file, which may be in Base64."""
    return max(settings.MAX_REQUEST_BYTES, settings.MAX_FILE_BYTES * 4 // 3 + _TEXT_BYTES)


def mark_recognized(scope: Scope) -> None:
    """Tells the server that the caller of a connection is known, so that it is never sacrificed."""
    if cycle := scope.get("causeway.cycle"):
        cycle.recognize()


class ClientGone(Exception):
    """The caller disconnected, so no response is possible."""


def body_length(scope: Scope, limit: int | None = None) -> int | None:
    """Returns the length of a body, ``None`` if it is chunked; raises :class:`PayloadTooLarge`.

    ``limit`` is that of a route whose bodies may be larger than others.
    """
    limit = limit or settings.MAX_REQUEST_BYTES
    for name, value in scope["headers"]:
        if name == b"content-length":
            if int(value) > limit:
                raise PayloadTooLarge
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


async def read_body(
    receive: Receive,
    occupancy: Occupancy,
    length: int | None,
    begun: Iterable[bytes] = (),
    *,
    limit: int | None = None,
    encoding: bytes = b"",
) -> bytes:
    """Reads a whole request body, whose bytes are counted before they are asked for.

    ``length`` is the announced one; a chunked body is counted as it arrives. ``begun`` are parts
    that have been read, and ``limit`` is that of a route with larger bodies. ``encoding`` is the
    value of ``Content-Encoding``. Raises :class:`PayloadTooLarge`, :class:`ClientGone`, the
    refusals of :meth:`Occupancy.reserve`, and the errors of :func:`decode_body`.
    """
    limit = limit or settings.MAX_REQUEST_BYTES
    parts = list(begun)
    size = sum(map(len, parts))
    # Several parts are joined as they come: none is in memory beside the whole.
    whole: io.BytesIO | None = None
    occupancy.reserve(size if length is None else length)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise PayloadTooLarge
        if length is None:
            occupancy.reserve(len(part))
        parts.append(part)
        if len(parts) > 1:
            whole = whole or io.BytesIO()
            whole.writelines(parts)
            parts.clear()
        if not message.get("more_body"):
            break
    if whole is not None:
        whole.writelines(parts)
    body = parts[0] if whole is None else whole.getvalue()
    return await decode_body(encoding, body, occupancy, limit) if encoding else body


def guard_bodies(
    application: AsgiApplication, find: FindCaller, render: RenderRefusal
) -> AsgiApplication:
    """Returns an application whose requests are counted for the callers that ``find`` recognizes.

    A large body is read for a recognized caller only. Other requests of unknown callers pass, and
    the application itself refuses them. A body of unknown length is read first and then gets a
    ``Content-Length``, because Django REST Framework treats a body without one as empty.
    """

    async def serve_guarded(scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            try:
                require_utf8(scope)
                length = body_length(scope)
                encoding = join_headers(scope, b"content-encoding") if length != 0 else b""
                begun = await _read_beginning(receive) if length is None else _NOTHING
                is_large = begun.has_more or (length or 0) > UNRECOGNIZED_BYTES
                occupancy = await find(scope, is_large)
                if occupancy is not None:
                    stack.enter_context(occupancy)
                if occupancy is not None and (encoding or begun.has_more):
                    body = await _read_rest(receive, occupancy, length, begun, encoding)
                    scope, receive = _with_length(scope, len(body)), _replay_body(body, receive)
                elif length is None:
                    body = b"".join(begun.parts)
                    scope, receive = _with_length(scope, len(body)), _replay_body(body, receive)
                elif occupancy is not None and is_large:
                    occupancy.reserve(length)
                if occupancy is not None:
                    await stack.enter_async_context(occupancy.turn())
            except ClientGone:
                return
            except GatewayError as error:
                await _respond(send, error, *render(scope, error))
                return
            await application(scope, receive, send)

    return serve_guarded


def require_utf8(scope: Scope) -> None:
    """Raises :class:`UnsupportedMediaType` if the type of the body names another charset.

    Django looks a charset up among the codecs of Python, which remember every name. Some of them
    read no text, and the name in an extended parameter, with a ``*``, may be none. A line of many
    parameters keeps the event loop busy, so a long one is refused unread.
    """
    line = join_headers(scope, b"content-type").decode("latin-1")
    is_plain = len(line) <= _TYPE_CHARACTERS and "*" not in line.partition(";")[2]
    if not is_plain or parse_header_parameters(line)[1].get("charset", "").lower() not in _UTF8:
        raise UnsupportedMediaType("Content-Type: send text in UTF-8, or name no charset.")


class _Beginning(NamedTuple):
    """The first parts of a chunked body, and whether more follow."""

    parts: list[bytes]
    has_more: bool


_NOTHING: Final = _Beginning([], has_more=False)


async def _read_beginning(receive: Receive) -> _Beginning:
    """Reads as much of a chunked body as may be read for an unknown caller."""
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
        has_more = message.get("more_body", False)
        if size > UNRECOGNIZED_BYTES or not has_more:
            return _Beginning(parts, has_more=has_more)


async def _read_rest(
    receive: Receive,
    occupancy: Occupancy,
    length: int | None,
    begun: _Beginning,
    encoding: bytes,
) -> bytes:
    """Returns the whole body of a recognized caller, without its encoding."""
    if begun.has_more or length is not None:
        return await read_body(receive, occupancy, length, begun.parts, encoding=encoding)
    body = b"".join(begun.parts)
    return await decode_body(encoding, body, occupancy, settings.MAX_REQUEST_BYTES)


def join_headers(scope: Scope, wanted: bytes) -> bytes:
    """Returns the values of the headers of one name, joined by commas."""
    return b",".join(value for name, value in scope["headers"] if name == wanted)


def _with_length(scope: Scope, length: int) -> Scope:
    """Returns the scope of a body that was read, and decoded if it was encoded."""
    known = [(name, value) for name, value in scope["headers"] if name not in _FRAMING]
    return {**scope, "headers": [*known, (b"content-length", str(length).encode())]}


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Returns a receiver that gives the body once, and then the messages of ``receive``."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_next() -> Message:
        return pending.pop() if pending else await receive()

    return receive_next


async def _respond(send: Send, error: GatewayError, content_type: str, body: bytes) -> None:
    headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
        *((name.lower().encode(), write_header(value)) for name, value in error.headers.items()),
    ]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def decode_body(encoding: bytes, body: bytes, occupancy: Occupancy, limit: int) -> bytes:
    """Returns a body without its encodings, whose bytes are counted as they come.

    ``encoding`` is the value of ``Content-Encoding``. Raises :class:`UnsupportedMediaType`,
    :class:`InvalidRequest` for bytes that are not of this encoding, :class:`PayloadTooLarge` above
    ``limit``, and the refusals of :meth:`Occupancy.reserve` and :meth:`Occupancy.run_large`.
    """
    names = [name.strip() for name in encoding.decode("latin-1").lower().split(",")]
    match [name for name in names if name not in ("", "identity")]:
        case []:
            return body
        case [name]:
            pass
        case _:
            name = ""
    if not body:
        return body
    members, problem = _open(name, body)
    whole = io.BytesIO()
    # One step is short enough for the event loop, and most short bodies need no other.
    is_short = len(body) <= LARGE_BYTES
    try:
        while not members.is_over:
            part = members.read() if is_short else await occupancy.run_large(members.read)
            is_short = False
            if whole.tell() + len(part) > limit:
                raise PayloadTooLarge
            occupancy.reserve(len(part))
            whole.write(part)
    except (EOFError, problem):
        raise InvalidRequest(f"Content-Encoding: the body is not whole, or no {name}.") from None
    return whole.getvalue()


class _Members:
    """The members of a body, which are decoded in short steps."""

    def __init__(self, body: bytes, make: Callable[[], Any], padding: bytes = b"") -> None:
        """Stores the body, what makes the decoder of a member, and what may follow a member."""
        self._body, self._make, self._padding = body, make, padding
        self._decoder: Any = None
        self._count = self._position = 0
        self.is_over = False

    def read(self) -> bytes:
        """Returns what the next bytes become, which may be nothing.

        Raises :class:`EOFError` for a member that is cut off, :class:`InvalidRequest` for too many
        members, and the errors of the decoder.
        """
        end = len(self._body)
        piece = self._body[self._position : self._position + _PIECE_BYTES]
        if self._decoder is None:
            rest = piece.lstrip(self._padding)
            self._position += len(piece) - len(rest)
            if not rest:
                self.is_over = self._position == end
                return b""
            piece = rest
            self._begin()
        decoder = self._decoder
        # The decoder of zstd keeps what it has not decoded; that of gzip gives it back.
        if not getattr(decoder, "needs_input", True):
            piece = b""
        part: bytes = decoder.decompress(piece, _PART_BYTES)
        left = decoder.unused_data if decoder.eof else getattr(decoder, "unconsumed_tail", b"")
        self._position += len(piece) - len(left)
        if decoder.eof:
            self._decoder = None
            self.is_over = self._position == end
        elif not part and self._position == end and getattr(decoder, "needs_input", True):
            raise EOFError
        return part

    def _begin(self) -> None:
        self._count += 1
        if self._count > _MAX_MEMBERS:
            raise InvalidRequest(
                f"Content-Encoding: the body has more than {_MAX_MEMBERS:,} members."
            )
        self._decoder = self._make()


def _open(name: str, body: bytes) -> tuple[_Members, type[Exception]]:
    """Returns the members of a body, and the error of one that is broken."""
    if name in ("gzip", "x-gzip"):
        return _Members(body, partial(zlib.decompressobj, _GZIP), b"\0"), zlib.error
    if name == "zstd":
        # Its import takes 2 MB of memory, and few clients send it.
        zstd: Any = import_module(_ZSTD)
        options = {zstd.DecompressionParameter.window_log_max: _WINDOW}
        return _Members(body, partial(zstd.ZstdDecompressor, options=options)), zstd.ZstdError
    raise UnsupportedMediaType(
        f"Content-Encoding: send the body without it, or with one of: {_CODINGS}.",
        headers={"Accept-Encoding": _CODINGS},
    )
