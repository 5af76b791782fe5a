"""Scans JSON before it is decoded: bounds what decoding may cost, and finds duplicate keys; pure.

A scan creates few objects whatever the text holds, and works on one piece of it after another. So a
thread that scans lets the event loop run between two pieces, which a decoder never does: a decoder
is one call of C that keeps all other threads waiting until its end.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final

import msgspec

# The bytes of one step: about a millisecond of work, whatever they are.
_PIECE_BYTES: Final = 128 * 1024
# A longer key is refused. It is half of a piece, so that no such key is lost in a step.
_KEY_BYTES: Final = _PIECE_BYTES // 2
_BRACKETS: Final = b"{}[]"
_OTHERS: Final = bytes(set(range(256)) - set(_BRACKETS))
_WHITESPACE: Final = b" \t\r\n"
_AFTER_STRINGS: Final = frozenset((b",", b":", b"]", b"}"))
# Bytes that never occur in valid JSON outside of a string's escapes; they stand for an escaped
# backslash and an escaped quote, so that every quote that is left begins or ends a string.
_BACKSLASH: Final = b"\x01\x01"
_QUOTE: Final = b"\x02\x02"
_ESCAPED: Final = re.compile(rb"[\x01\x02\\]")
# A number, the exponent of a large one, and the rest of one that a piece ends in.
_NUMBER: Final = re.compile(rb"(?<![-+.0-9eE])-?[0-9][-+.0-9eE]*+")
_EXPONENT: Final = re.compile(rb"[0-9][eE]\+?[0-9]{3}")
_REST: Final = re.compile(rb"[-+.0-9eE]{0,4400}")
_NUMBER_BYTES: Final = b"-+.0123456789eE"
# No double has more digits before its point: more of them fill one of the windows. Integers may
# have as many as Python reads.
_WINDOW: Final = 309 // 2
_MOST_DIGITS: Final = 4_300
_decode_text = msgspec.json.Decoder(str).decode


class BoundExceeded(Exception):
    """The text exceeds a bound; ``limit`` is the bound, ``what`` the thing that it counts."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(f"more than {limit} {what}")
        self.what = what
        self.limit = limit


class _NotJSON(Exception):
    """No decoder reads on after this byte."""


class DuplicateKey(Exception):
    """An object names a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class NumberOutOfRange(Exception):
    """No decoder takes a number, which is in this member of the outermost object."""

    def __init__(self, member: str) -> None:
        super().__init__(member)
        self.member = member


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that a JSON text may hold.

    ``depth`` counts nested objects and lists, ``containers`` all objects and lists, ``members`` the
    keys of one object, and ``values`` everything: members, elements of lists and containers.
    ``lists`` bounds the objects in the lists of these members of the outermost object. With
    ``numbers`` each number is in the range of its decoder: that of a double, unless it is an
    integer.
    """

    depth: int
    containers: int
    members: int
    values: int
    lists: Mapping[bytes, int] = field(default_factory=dict)
    numbers: bool = False


def scan(text: bytes | bytearray, bounds: Bounds, *, may_repeat: bool = False) -> None:
    """Raises if decoding the text would cost too much, or if one of its objects repeats a key.

    ``may_repeat`` accepts objects that repeat a key.

    Raises :class:`BoundExceeded`, :class:`DuplicateKey`, :class:`NumberOutOfRange`, and
    ``UnicodeDecodeError`` if the text is not UTF-8. A text that is not JSON may pass: a decoder
    refuses it at the first wrong byte, and up to that byte the scan has read it as the decoder
    does.
    """
    scanner = _Scanner(bounds, may_repeat)
    encoding = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(text)
    start = 0
    while start < len(text):
        end = min(start + _PIECE_BYTES, len(text))
        if bounds.numbers and text[end - 1] in _NUMBER_BYTES and (rest := _REST.match(text, end)):
            end = rest.end()
        piece = bytes(view[start:end])
        # An escape is not cut in two, nor is a number.
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2 and end < len(text):
            piece += bytes(view[end : end + 1])
            end += 1
        if not piece.isascii() or encoding.getstate()[0]:
            encoding.decode(piece)
        try:
            scanner.feed(piece)
        except _NotJSON:
            return
        start = end
    encoding.decode(b"", final=True)


@dataclass(slots=True)
class _Scanner:
    """Follows objects and lists through the pieces of a text."""

    bounds: Bounds
    may_repeat: bool
    containers: int = 0
    values: int = 0
    strings: int = 0
    # The member of the outermost object that is being read, and the containers directly in it.
    member: bytes = b""
    items: int = 0
    is_outermost: bool = False
    # The keys of the innermost container, and of those around it; none for a list.
    keys: set[bytes] | None = None
    outer: list[set[bytes] | None] = field(default_factory=list)
    # The beginnings of a string that the piece before did not end.
    string: list[bytes] | None = None
    # A whole string at the end of a piece, which is a key if a colon follows.
    last: bytes | None = None
    # A number of the piece may be out of range.
    has_large: bool = False

    def feed(self, piece: bytes) -> None:
        has_escapes = b"\\" in piece
        if has_escapes:
            piece = piece.replace(rb"\\", _BACKSLASH).replace(rb"\"", _QUOTE)
        parts = piece.split(b'"')
        self.strings += len(parts) // 2
        if self.strings > 2 * self.bounds.values:
            raise BoundExceeded("values", self.bounds.values)
        if self.string is None:
            parts.insert(0, b"")
        if len(parts) == 1:
            self._extend_string(parts[0])
            return
        # Texts of strings and what follows each of them alternate; the last string may be open.
        is_open = len(parts) % 2 == 1
        beginning = parts.pop() if is_open else b""
        if self.bounds.numbers:
            self.has_large = _may_be_large(b" ".join(parts[1::2]))
        self._end_string(parts[0])
        self._read_structure(parts[1])
        commas = 0
        for text, after in zip(parts[2::2], parts[3::2], strict=True):
            if after == b",":
                commas += 1
            elif after == b":" and not has_escapes and (keys := self.keys) is not None:
                if text in keys and not self.may_repeat:
                    raise DuplicateKey(text.decode("utf-8", "replace"))
                keys.add(text)
                if self.is_outermost:
                    self.member, self.items = text, 0
            else:
                if self.last is not None:
                    raise _NotJSON
                self.last = text
                self._read_structure(after)
        self.values += commas
        self._check_members()
        if is_open:
            self.string = []
            self._extend_string(beginning)

    def _end_string(self, part: bytes) -> None:
        """Ends the string that the piece before began, if it began one."""
        if self.string is not None:
            self.last = b"".join([*self.string, part])
            self.string = None

    def _extend_string(self, part: bytes) -> None:
        assert self.string is not None
        # Only a string in an object may be a key, and the third piece shows that it is too long.
        if self.keys is not None and len(self.string) < 3:
            self.string.append(part)

    def _read_structure(self, part: bytes) -> None:
        """Reads the bytes between two strings."""
        if self.last is not None and (rest := part.lstrip(_WHITESPACE)):
            if rest[:1] not in _AFTER_STRINGS:
                raise _NotJSON
            if rest[:1] == b":" and self.keys is not None:
                self._add_key(self.last, self.keys)
            self.last = None
        if self.has_large:
            self._check_numbers(part)
        self.values += part.count(b",")
        for bracket in part.translate(None, _OTHERS):
            if bracket in b"{[":
                self._open(set() if bracket == 0x7B else None)
            else:
                self._close()
        if self.values > self.bounds.values:
            raise BoundExceeded("values", self.bounds.values)

    def _check_numbers(self, part: bytes) -> None:
        """Raises :class:`NumberOutOfRange` for such a number between two strings."""
        for found in _NUMBER.finditer(part):
            number = found[0].removeprefix(b"-")
            try:
                is_in = len(number) <= _MOST_DIGITS if number.isdigit() else isfinite(float(number))
            except ValueError:
                raise _NotJSON from None
            if not is_in:
                raise NumberOutOfRange(self.member.decode("utf-8", "replace"))

    def _open(self, keys: set[bytes] | None) -> None:
        self.containers += 1
        self.values += 1
        if self.containers > self.bounds.containers:
            raise BoundExceeded("objects and lists", self.bounds.containers)
        self.outer.append(self.keys)
        depth = len(self.outer)
        if depth > self.bounds.depth:
            raise BoundExceeded("levels of nesting", self.bounds.depth)
        if depth == 3 and (limit := self.bounds.lists.get(self.member)) is not None:
            self.items += 1
            if self.items > limit:
                raise BoundExceeded(f"objects in {self.member.decode()}", limit)
        self.keys = keys
        self.is_outermost = depth == 1

    def _close(self) -> None:
        if not self.outer:
            raise _NotJSON
        self._check_members()
        self.keys = self.outer.pop()
        self.is_outermost = len(self.outer) == 1

    def _check_members(self) -> None:
        if self.keys is not None and len(self.keys) > self.bounds.members:
            raise BoundExceeded("members in one object", self.bounds.members)

    def _add_key(self, key: bytes, keys: set[bytes]) -> None:
        if len(key) > _KEY_BYTES:
            raise BoundExceeded("bytes in one key", _KEY_BYTES)
        if _ESCAPED.search(key):
            key = _read_key(key)
        if key in keys and not self.may_repeat:
            raise DuplicateKey(key.decode("utf-8", "replace"))
        keys.add(key)
        if self.is_outermost:
            self.member, self.items = key, 0


def _may_be_large(structure: bytes) -> bool:
    """Returns whether a number may be out of range, by what is fast to find."""
    if (b"e" in structure or b"E" in structure) and _EXPONENT.search(structure):
        return True
    starts = range(0, len(structure) - _WINDOW + 1, _WINDOW)
    return any(structure[start : start + _WINDOW].isdigit() for start in starts)


def _read_key(key: bytes) -> bytes:
    """Returns the text of a key with escapes; a malformed one, which no decoder accepts, as is."""
    raw = key.replace(_BACKSLASH, rb"\\").replace(_QUOTE, rb"\"")
    try:
        return _decode_text(b'"' + raw + b'"').encode("utf-8", "surrogatepass")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return raw
