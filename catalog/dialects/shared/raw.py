"""Measures and writes raw JSON without decoding or copying what is long; pure.

Decoding 47 MB of text takes 100 ms of a worker and up to four times its size in memory. What is
long is therefore measured in pieces, and written as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

Piece = bytes | memoryview

# Longer values are not decoded at once.
LONG_BYTES: Final = 64 * 1024
_PIECE_BYTES: Final = 128 * 1024
# The characters of a JSON text that a cut must not divide: escapes, and pairs of surrogates.
_WHOLE: Final = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?:[dD][89abAB]..\\u[dD][c-fC-F]..|[^dD]...|[dD][0-7]..))*+", re.DOTALL
)
# The beginning of an escape of an ASCII character.
ESCAPE: Final = b"\\u00"
# The values that set nothing, however they are written, and those that also count as nothing where
# a server sends two members for the same text.
_UNSET: Final = re.compile(rb'(?:null|false|""|\[\s*\]|\{\s*\})?')
_EMPTY: Final = re.compile(rb'(?:null|false|""|\[\s*\]|\{\s*\}|-?0(?:\.0+)?(?:[eE][-+]?\d+)?)?')
# All bytes but ASCII letters and digits, and the first byte of any other character that is no
# symbol or punctuation: tokenizers have tokens for long runs of these.
_UNCOUNTED: Final = bytes(
    each
    for each in range(256)
    if not (each < 0x80 and chr(each).isalnum()) and (each < 0xC3 or each == 0xE2)
)
# The escapes of line ends and the like, whose letters are none.
_BLANKS: Final = (rb"\n", rb"\t", rb"\r", rb"\f", rb"\b")
_NULL: Final = msgspec.Raw(b"null")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def decode_list(value: Any) -> list[dict[str, Any]] | None:
    """Returns a list of objects with raw members, or ``None`` for any other value."""
    try:
        return _decode_objects(value if isinstance(value, msgspec.Raw) else _encode(value))
    except (msgspec.DecodeError, RecursionError):
        return None


def decode_members(value: Any) -> dict[str, Any] | None:
    """Returns an object with raw members, or ``None`` for any other value."""
    return _decode_members(value) if first_byte(value) == b"{" else None


def read_text(value: Any) -> str | None:
    """Returns a raw text; ``None`` for any other value."""
    return _decode_text(value) if first_byte(value) == b'"' else None


def read_member(members: Mapping[str, Any], name: str) -> str:
    """Returns the text of a member, raw or not; an empty one for any other value."""
    value = members.get(name)
    return value if isinstance(value, str) else read_text(value) or ""


def write_arguments(raw: msgspec.Raw) -> str:
    """Returns the arguments of a call as text; none for an object without members, or for none.

    Some servers write the object as a text.
    """
    if is_null(raw):
        return ""
    if first_byte(raw) == b'"':
        return _decode_text(raw)
    if first_byte(raw) != b"{":
        return bytes(raw).decode()
    members = _decode_members(raw)
    return _encode(members).decode() if members else ""


def is_blank(arguments: str) -> bool:
    """Tells whether the text of a call's arguments says nothing."""
    return arguments.strip() in ("", "null")


def spell(text: str) -> bytes:
    """Returns the pattern of a text in JSON, where any of its characters may be an escape."""
    return b"".join(
        rb"(?:%b|\\u00(?i:%02x))" % (re.escape(char).encode(), ord(char)) for char in text
    )


def is_empty(raw: msgspec.Raw) -> bool:
    """Tells whether a value is absent, null or empty; zero is empty too."""
    return _EMPTY.fullmatch(raw) is not None


def is_unset(raw: msgspec.Raw) -> bool:
    """Tells whether a member is absent, or has a value that sets nothing."""
    return _UNSET.fullmatch(raw) is not None


def is_null(raw: msgspec.Raw) -> bool:
    """Tells whether a value is absent or null."""
    return not raw or raw == _NULL


def first_byte(value: Any) -> bytes:
    """Returns the first byte of a raw value, which tells its type; none for any other value."""
    return bytes(memoryview(value)[:1]) if isinstance(value, msgspec.Raw) else b""


def measure_value(raw: msgspec.Raw) -> int:
    """Returns the size of a text in UTF-8, or of the JSON of any other value; 0 for null.

    Raises ``msgspec.DecodeError`` for a malformed text.
    """
    if is_null(raw):
        return 0
    view = memoryview(raw)
    if view[0] == 0x22:
        if len(view) > LONG_BYTES:
            return sum(map(_measure_text, iter_text(view)))
        return _measure_text(_decode_text(raw))
    try:
        return len(view) if len(view) > LONG_BYTES else len(_encode(_decode(raw)))
    except msgspec.DecodeError:  # a number out of range
        return len(view)


def count_characters(text: msgspec.Raw | bytes) -> int:
    """Returns the letters and digits of a JSON text; an escaped character counts once.

    Tokenizers join spaces, line ends, and runs of signs, so these say nothing about the tokens that
    a text has at least.
    """
    raw = bytes(text)
    count = len(raw.translate(None, _UNCOUNTED))
    if b"\\" in raw:
        count -= sum(map(raw.count, _BLANKS)) + 4 * raw.count(b"\\u") + raw.count(b"\\u2")
    return max(count, 0)


def _measure_text(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def iter_text(view: memoryview) -> Iterator[str]:
    """Yields a JSON text in pieces, decoded; raises ``msgspec.DecodeError`` for a malformed one."""
    if len(view) <= LONG_BYTES:
        yield _decode_text(view)
        return
    start, end = 1, len(view) - 1
    while start < end:
        found = _WHOLE.match(view, start, min(start + _PIECE_BYTES, end))
        assert found is not None
        stop = found.end()
        while stop < end and view[stop] & 0xC0 == 0x80:
            stop -= 1
        if stop <= start:
            raise msgspec.DecodeError("half of a pair of surrogates")
        yield _decode_text(b'"%s"' % view[start:stop])
        start = stop


def encode_pieces(value: Any) -> list[Piece]:
    """Returns the JSON of a value in pieces; long raw members are not copied."""
    pieces: list[Piece] = []
    short: list[bytes] = []
    for piece in _write(value):
        if len(piece) <= LONG_BYTES:
            short.append(bytes(piece))
        else:
            pieces += (b"".join(short), piece)
            short = []
    return [*pieces, b"".join(short)]


def _write(value: Any) -> Iterator[Piece]:
    if isinstance(value, msgspec.Raw):
        yield memoryview(value)
    elif isinstance(value, dict):
        mark = b"{"
        for name, member in value.items():
            yield mark + _encode(name) + b":"
            yield from _write(member)
            mark = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, list):
        mark = b"["
        for item in value:
            yield mark
            yield from _write(item)
            mark = b","
        yield b"]" if value else b"[]"
    else:
        yield _encode(value)
