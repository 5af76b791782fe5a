"""Reads the strings of a request body with content filters, and replaces what they match; pure."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID

import msgspec

from config.api.errors import InvalidRequest
from inference.filters.definitions import Filter, Filters, Finding, union_of
from inference.filters.encoded import Unreadable, decode_readable, is_long
from inference.filters.places import DATA, DATA_DIGITS, Place, Redaction
from inference.filters.problems import ContentBlocked, TooLong, TooSlow

_NUMBERS: Final = frozenset((b"-", *(b"%d" % digit for digit in range(10))))
_MAX_DEPTH: Final = 32
_MAX_REDACTIONS: Final = 100_000
# A number with a larger exponent is no number of a card or a person.
_MAX_EXPONENT: Final = 40
_PSEUDONYM_BYTES: Final = 12
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

_Cut = tuple[int, int, int]


class _Active:
    """The filters that read a text, and the pattern that shows whether any of them matches."""

    __slots__ = ("filters", "union")

    def __init__(self, filters: list[tuple[int, Filter]]) -> None:
        self.filters = filters
        self.union = union_of(tuple(each for _, each in filters)) if len(filters) else None


class Reader:
    """Reads one request until its deadline, and counts the texts in which filters match.

    ``where`` names the part of the request for messages. ``is_of_user`` is false for a text that is
    not the user's, which filters of users' texts skip. ``growth`` is the number of bytes by which
    replacements are longer than what they replace; labels may be longer by ``room`` bytes in all.
    """

    def __init__(self, filters: Filters, deadline: float, room: int) -> None:
        self._filters = filters
        self._labels = [len(_format_label(each.label)) for each in filters]
        self.room = room
        self._all = list(enumerate(filters))
        self._of_user = _Active(self._all)
        self._of_others = _Active([item for item in self._all if not item[1].is_of_users_only])
        self._deadline = deadline
        self._counts = [0] * len(filters)
        self._redactions = 0
        self.where = "the prompt"
        self.is_of_user = True
        self.growth = 0

    def findings(self) -> tuple[Finding, ...]:
        return tuple(each.report(self._counts[i]) for i, each in self._all if self._counts[i])

    def read_value(self, raw: Any, place: Place, *, depth: int = 0) -> bytes | None:
        """Returns the replacement of a JSON value; ``None`` without a redaction.

        Raises :class:`ContentBlocked`, :class:`TooSlow`, :class:`TooLong`,
        :class:`InvalidRequest` for too many levels of the body, and ``msgspec.DecodeError`` for
        text that is not Unicode.
        """
        if depth > _MAX_DEPTH:
            raise InvalidRequest(
                f"The content filters of a guardrail read no more than {_MAX_DEPTH} levels."
            )
        match first_byte(raw):
            case b'"':
                return self._read_string(raw, place, depth)
            case b"{":
                return self._read_object(raw, place, depth)
            case b"[":
                items: list[Any] = _decode_list(raw)
                is_changed = False
                for index, item in enumerate(items):
                    if (value := self.read_value(item, place, depth=depth + 1)) is not None:
                        items[index] = msgspec.Raw(value)
                        is_changed = True
                return _encode(items) if is_changed else None
            case lead if lead in _NUMBERS:
                return self._read_number(bytes(raw).decode(), place)
        return None

    def read_name(self, name: str, place: Place) -> str:
        """Reads the name of an unknown member; returns its replacement or the name itself."""
        if place.is_parameter and name.isdecimal() and len(name) < DATA_DIGITS:
            return name
        label = self._screen_text(name)
        if label is None:
            return name
        if not place.is_data:
            raise self._refuse()
        return label

    def _read_object(self, raw: Any, place: Place, depth: int) -> bytes | None:
        members: dict[str, Any] = _decode_members(raw)
        changed: dict[str, tuple[str, Any]] = {}
        for name, item in members.items():
            label = name if name in place.members else self.read_name(name, place)
            value = self.read_value(item, place.inner(name), depth=depth + 1)
            if value is not None or label is not name:
                changed[name] = (label, item if value is None else msgspec.Raw(value))
        if not changed:
            return None
        return _encode(dict(changed.get(name, (name, item)) for name, item in members.items()))

    def _read_string(self, raw: Any, place: Place, depth: int) -> bytes | None:
        text = _decode_text(raw)
        if not text or text in place.values:
            return None
        if place.is_encoded:
            self._read_encoded(text, depth)
            return None
        replacement = self._read_text(text, depth)
        if replacement is None:
            return None
        match place.redaction:
            case Redaction.REFUSE:
                raise self._refuse()
            case Redaction.PSEUDONYM:
                replacement = _make_pseudonym(text, self._last.guardrail_id)
        encoded = _encode(replacement)
        self.growth += max(len(encoded) - len(memoryview(raw)), 0)
        return encoded

    def _read_number(self, text: str, place: Place) -> bytes | None:
        """Reads the digits of a number, also those that its exponent adds."""
        plain = text
        if "e" in text or "E" in text:
            number = Decimal(text)
            if abs(number.adjusted()) <= _MAX_EXPONENT:
                plain = f"{number:f}"
        if place.is_parameter and sum(map(str.isdecimal, plain)) < DATA_DIGITS:
            return None
        label = self._screen_text(text)
        if label is None and plain != text:
            label = self._screen_text(plain)
        if label is None:
            return None
        if not place.is_data:
            raise self._refuse()
        return _encode(label)

    def _read_encoded(self, text: str, depth: int) -> None:
        """Reads a URL, Base64 or a signature; only what is no text at all passes unread."""
        is_data = text[:5].lower() == "data:"
        head, comma, payload = text.partition(",") if is_data else ("", "", text)
        readable = [head]
        is_base64 = head.rstrip().lower().endswith(";base64")
        # Decoders skip white space, and a URL may escape any of its characters.
        encoded = "".join((unquote(payload) if comma else payload).split())
        if not comma or is_base64:
            is_declared_text = head[:10].lower() == "data:text/"
            try:
                content = decode_readable(encoded, is_declared_text=is_declared_text)
            except Unreadable:
                self.meet_unreadable()
                if encoded != payload:
                    readable.append(payload)
            else:
                if content is not None:
                    readable.append(content)
                elif is_base64:
                    self.meet_unreadable()
                if content is None or encoded != payload or not is_long(payload):
                    readable.append(payload)
        else:
            readable.append(payload)
        readable += [unquote(each) for each in readable if "%" in each]
        for each in readable:
            if each and self._read_text(each, depth) is not None:
                raise self._refuse()

    def meet_unreadable(self) -> None:
        for _, each in self._active.filters:
            if each.blocks_unreadable:
                raise ContentBlocked(
                    each.report(),
                    f"A guardrail blocks media and encrypted content in {self.where}, because its "
                    f"filter {each.label} cannot read it. Send text instead.",
                )

    def _read_text(self, text: str, depth: int) -> str | None:
        """Returns the replacement of a text, which may be JSON and then stays JSON.

        JSON is read twice: its decoded strings, which may hide behind escapes, and its own text,
        because a pattern may match a name and its value together. Escapes outside of JSON are read
        too, but what they hide cannot be replaced.
        """
        before = list(self._counts)
        raw = text.encode()
        is_json = text.lstrip()[:1] in ("{", "[")
        value = self._read_json(text.strip().encode(), depth) if is_json else None
        cuts = self._find_cuts(raw)
        if value is not None:
            orders = {order for _, order, _ in cuts}
            raw, cuts = value, self._find_cuts(value, orders) if orders else []
        replacement = None
        if cuts:
            replacement = _redact(raw, cuts, self._filters)
        elif value is not None:
            replacement = value.decode()
        result = text if replacement is None else replacement
        if "\\u" in result:
            plain = _ESCAPE.sub(_decode_escape, result)
            if plain != result and self._find_cuts(plain.encode("utf-8", "replace")):
                raise self._refuse()
        # The text counts once, however often a filter matches in it.
        self._counts = [
            count + (now > count) for count, now in zip(before, self._counts, strict=True)
        ]
        return replacement

    def _read_json(self, raw: bytes, depth: int) -> bytes | None:
        """Reads a text as JSON; ``None`` without a redaction and for any other text."""
        before = list(self._counts)
        try:
            return self.read_value(raw, DATA, depth=depth + 1)
        except (msgspec.DecodeError, RecursionError, InvalidRequest):
            self._counts = before
            return None

    def _screen_text(self, text: str) -> str | None:
        raw = text.encode()
        cuts = self._find_cuts(raw)
        return _redact(raw, cuts, self._filters) if cuts else None

    @property
    def _active(self) -> _Active:
        return self._of_user if self.is_of_user else self._of_others

    def _find_cuts(self, raw: bytes, orders: Collection[int] | None = None) -> list[_Cut]:
        """Returns the start, filter and end of each match to redact, and counts the text.

        ``orders`` limits the filters. Raises :class:`ContentBlocked` when a filter blocks the text.
        """
        active = self._active
        self._require_time()
        if orders is None and active.union is not None and active.union.search(raw) is None:
            return []
        cuts: list[_Cut] = []
        for order, each in active.filters:
            if orders is not None and order not in orders:
                continue
            self._require_time()
            is_found = False
            for span in each.find_spans(raw):
                self._require_time()
                if span is None:
                    continue
                if not is_found:
                    is_found = True
                    self._counts[order] += 1
                if each.action == "block":
                    raise ContentBlocked(
                        each.report(),
                        f"A guardrail blocks this content in {self.where}: {each.label}.",
                    )
                if each.action == "flag":
                    break
                cuts.append((span[0], order, span[1]))
                self.room -= max(self._labels[order] - (span[1] - span[0]), 0)
                if self.room < 0:
                    raise TooLong
                self._redactions += 1
                if self._redactions > _MAX_REDACTIONS:
                    raise ContentBlocked(
                        each.report(),
                        f"The request contains {each.label} too often to redact it.",
                    )
        if cuts:
            self._last = self._all[cuts[-1][1]][1]
        return cuts

    def _refuse(self) -> ContentBlocked:
        """Returns the error for a match of a redacting filter that cannot be replaced."""
        each = self._last
        return ContentBlocked(
            replace(each.report(), action="block"),
            f"A guardrail redacts {each.label}, but cannot replace it in a name, number, URL, "
            f"escape or setting of {self.where}. Remove it there.",
        )

    def _require_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TooSlow


def _redact(raw: bytes, cuts: Sequence[_Cut], filters: Filters) -> str:
    """Replaces the matches; overlapping matches get one label, that of the first."""
    pieces: list[bytes] = []
    labels = [_format_label(each.label) for each in filters]
    position = 0
    for start, order, end in sorted(cuts):
        if start >= position:
            pieces += (raw[position:start], labels[order])
        position = max(position, end)
    pieces.append(raw[position:])
    # A pattern may match single bytes and so cut a character in two.
    return b"".join(pieces).decode("utf-8", "replace")


def _make_pseudonym(text: str, guardrail_id: UUID) -> str:
    """Returns another name for an id, the same for every text of the guardrail that equals it."""
    key = guardrail_id.bytes
    digest = hashlib.blake2b(text.encode(), digest_size=_PSEUDONYM_BYTES, key=key)
    # Letters only, so that no filter takes it for a number.
    return "call_" + digest.hexdigest().translate(_LETTERS)


_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")


def _decode_escape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


def first_byte(raw: Any) -> bytes:
    """Returns the first byte of a JSON value, which shows its type."""
    return bytes(memoryview(raw)[:1])


def _format_label(label: str) -> bytes:
    return (label if label.startswith("[") and label.endswith("]") else f"[{label}]").encode()
