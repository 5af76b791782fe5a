"""Reads the strings of a request body with content filters, and replaces what they match; pure."""

from __future__ import annotations

import hashlib
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID

import msgspec

from accounts.patterns import Pattern
from config.api.errors import InvalidRequest
from inference.filters.definitions import Filter, Filters, Finding, union_of
from inference.filters.encoded import Unreadable, decode_readable, is_long
from inference.filters.json_text import JsonToken, find_json, find_tokens, group_names
from inference.filters.places import DATA, DATA_DIGITS, Place, Redaction
from inference.filters.problems import ContentBlocked, TooLong, TooSlow
from inference.filters.recogniser import Span

_NUMBERS: Final = frozenset((b"-", *(b"%d" % digit for digit in range(10))))
_MAX_DEPTH: Final = 32
MAX_REDACTIONS: Final = 100_000
# A number with a larger exponent is no number of a card or a person.
_MAX_EXPONENT: Final = 40
_PSEUDONYM_BYTES: Final = 12
# The bytes of a slice times the instructions of a pattern: 0.05 s at worst.
_SLICE_WORK: Final = 5_000_000
_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
# An escape of a control character hides that the text around it ends there.
_CONTROL: Final = re.compile(rb"\\[bfnrt]")
_EXPONENT: Final = re.compile(rb"[0-9][eE][+-]?[0-9]++[ \t\r\n,\]}]")
_CHARACTER: Final = re.compile(rb"\\u[0-9a-fA-F]{4}|\\.|[^\\]")
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

# A string with such a character may be read differently when it is decoded.
_MAY_HIDE: Final = re.compile(rb"[\\{\[]")
# The start, filter and end of a match; the start, end and text of a replacement.
_Cut = tuple[int, int, int]
_Edit = tuple[int, int, bytes]


class _Active:
    """The filters that read a text, and the pattern that shows whether any of them matches."""

    __slots__ = ("filters", "has_custom", "union")

    def __init__(self, filters: list[tuple[int, Filter]]) -> None:
        self.filters = filters
        self.union = union_of(tuple(each for _, each in filters)) if len(filters) else None
        self.has_custom = any(each.pattern is not None for _, each in filters)


class Reader:
    """Reads one request until its deadline, and counts the texts in which filters match.

    ``where`` names the part of the request for messages. ``is_of_user`` is false for a text that is
    not the user's, which filters of users' texts skip. ``growth`` is the number of bytes by which
    replacements are longer than what they replace; labels may be longer by ``room`` bytes in all.
    """

    def __init__(self, filters: Filters, deadline: float, room: int) -> None:
        self._labels = [_format_label(each.label) for each in filters]
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
                return _encode(items) if self.read_items(items, place, depth=depth + 1) else None
            case lead if lead in _NUMBERS:
                return self._read_number(bytes(raw).decode(), place)
        return None

    def read_items(
        self,
        items: list[Any],
        place: Place,
        *,
        depth: int,
        is_of_user: Callable[[Any], bool] | None = None,
    ) -> bool:
        """Replaces the items of a list; returns whether any changed.

        Texts beside each other are read as one text too, because the model reads them so.
        ``is_of_user`` says which items are the user's.
        """
        counts = list(self._counts)
        joined = self._read_joined(items) if place.has_texts and len(items) > 1 else {}
        flagged = [order for order, count in enumerate(self._counts) if count > counts[order]]
        self._counts = counts
        before = list(counts)
        is_changed = False
        for index, item in enumerate(items):
            if is_of_user is not None:
                self.is_of_user = is_of_user(item)
            if index in joined:
                value = self._read_part(item, place, depth, joined[index])
            else:
                value = self.read_value(item, place, depth=depth)
            if value is not None:
                items[index] = msgspec.Raw(value)
                is_changed = True
        for order in flagged:
            self._counts[order] = max(self._counts[order], before[order] + 1)
        if place.is_distinct and is_changed:
            texts = {i: _decode_text(x) for i, x in enumerate(items) if first_byte(x) == b'"'}
            names = _tell_apart(list(texts.values()), range(len(texts)))
            for index, name in zip(texts, names, strict=True):
                items[index] = msgspec.Raw(_encode(name))
        return is_changed

    def _read_joined(self, items: list[Any]) -> dict[int, list[_Cut]]:
        """Returns the matches in texts beside each other, by the number of the item."""
        joined: dict[int, list[_Cut]] = {}
        run: list[tuple[int, bytes]] = []
        for index, item in enumerate([*items, None]):
            text = None if item is None else _read_text_of(item)
            if text is not None:
                run.append((index, text.encode()))
                continue
            if len(run) > 1:
                joined |= self._cut_joined(run)
            run = []
        return joined

    def _cut_joined(self, run: list[tuple[int, bytes]]) -> dict[int, list[_Cut]]:
        redactions, room = self._redactions, self.room
        cuts = self._find_cuts(b"".join(text for _, text in run))
        found: dict[int, list[_Cut]] = {}
        start = 0
        # What is found in one text alone counts as it is found there.
        alone: list[_Cut] = []
        for _, text in run if cuts else ():
            alone += [(a + start, order, b + start) for a, order, b in self._find_cuts(text)]
            start += len(text)
        alone = _merge(sorted(alone))
        starts, ends = [cut[0] for cut in alone], [cut[2] for cut in alone]
        cuts = [cut for cut in cuts if bisect_right(ends, cut[0]) == bisect_left(starts, cut[2])]
        start = 0
        for index, text in run:
            end = start + len(text)
            found[index] = [
                (max(first, start) - start, order, min(last, end) - start)
                for first, order, last in cuts
                if first < end and last > start
            ]
            start = end
        # They count when the texts are read one by one.
        self._redactions, self.room = redactions, room
        return {index: cuts for index, cuts in found.items() if cuts}

    def _read_part(self, raw: Any, place: Place, depth: int, joined: list[_Cut]) -> bytes | None:
        """Reads a part with a text of which a match in its neighbours' texts is known."""
        members: dict[str, Any] = _decode_members(raw)
        text = self._read_string(members["text"], place.inner("text"), depth + 1, joined)
        others = {name: item for name, item in members.items() if name != "text"}
        rest = self.read_value(_encode(others), place, depth=depth)
        if text is not None:
            members["text"] = msgspec.Raw(text)
        return _encode(
            members if rest is None else {**_decode_members(rest), "text": members["text"]}
        )

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
        pairs = [changed.get(name, (name, item)) for name, item in members.items()]
        new = {
            i
            for i, (name, (label, _)) in enumerate(zip(members, pairs, strict=True))
            if label is not name
        }
        names = _tell_apart([label for label, _ in pairs], new)
        return _encode(dict(zip(names, (item for _, item in pairs), strict=True)))

    def _read_string(
        self, raw: Any, place: Place, depth: int, joined: Sequence[_Cut] = ()
    ) -> bytes | None:
        text = _decode_text(raw)
        if not text or text in place.values:
            return None
        if place.is_encoded:
            self._read_encoded(text, depth)
            return None
        replacement = self._read_text(text, depth, joined)
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
        plain = _write_out(text) if "e" in text or "E" in text else text
        if place.is_parameter and sum(map(str.isdecimal, plain)) < DATA_DIGITS:
            return None
        if self._screen_text(text) is None and (plain == text or self._screen_text(plain) is None):
            return None
        if not place.is_data:
            raise self._refuse()
        # A number stays a number.
        return b"0"

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

    def _read_text(self, text: str, depth: int, joined: Sequence[_Cut] = ()) -> str | None:
        """Returns the replacement of a text; JSON in it stays JSON.

        JSON is read twice: its decoded strings, which may hide behind escapes, and its own text,
        because a pattern may match a name and its value together. Escapes outside of JSON are read
        too, but what they hide cannot be replaced.
        """
        before = list(self._counts)
        raw = text.encode()
        cuts = [*joined, *self._find_cuts(raw)]
        for _, order, _ in joined:
            self._counts[order] += 1
        if "\\" in text and (blank := _CONTROL.sub(b"  ", raw)) != raw:
            cuts += self._find_cuts(blank, reads_custom=False)
        is_json = text.lstrip()[:1] in ("{", "[")
        reads_all = is_json and self._active.has_custom
        spans = []
        if depth <= _MAX_DEPTH and (
            cuts or reads_all or "\\" in text or (is_json and _EXPONENT.search(raw))
        ):
            spans = find_json(text, self._require_time)
        result = self._replace(raw, sorted(cuts), spans, depth, reads_all=reads_all)
        if "\\u" in text:
            shown = text if result is None else result
            plain = _ESCAPE.sub(_decode_escape, shown)
            if plain != shown and self._find_cuts(plain.encode("utf-8", "replace")):
                raise self._refuse()
        # The text counts once, however often a filter matches in it.
        self._counts = [
            count + (now > count) for count, now in zip(before, self._counts, strict=True)
        ]
        return result

    def _replace(
        self, raw: bytes, cuts: list[_Cut], spans: list[Span], depth: int, *, reads_all: bool
    ) -> str | None:
        """Returns a text without its matches; in JSON they are replaced in strings and numbers."""
        cuts = _merge(cuts)
        starts, ends = [cut[0] for cut in cuts], [cut[2] for cut in cuts]
        edits: list[_Edit] = []
        position = 0
        for first, last in [*spans, (len(raw), len(raw))]:
            edits += [
                (max(start, position), min(end, first), self._labels[order])
                for start, order, end in cuts[
                    bisect_right(ends, position) : bisect_left(starts, first)
                ]
            ]
            inside = cuts[bisect_right(ends, first) : bisect_left(starts, last)]
            if first < last and (
                inside
                or reads_all
                or raw.find(b"\\", first, last) >= 0
                or _EXPONENT.search(raw, first, last)
            ):
                edits += self._edit_json(raw, (first, last), inside, depth, reads_all=reads_all)
            position = last
        if not edits:
            return None
        pieces: list[bytes] = []
        position = 0
        for start, end, text in edits:
            pieces += (raw[position:start], text)
            position = end
        pieces.append(raw[position:])
        # A pattern may match single bytes and so cut a character in two.
        return b"".join(pieces).decode("utf-8", "replace")

    def _edit_json(
        self, raw: bytes, span: Span, cuts: list[_Cut], depth: int, *, reads_all: bool
    ) -> list[_Edit]:
        """Returns the replacements of strings and numbers of JSON in a text."""
        starts, ends = [cut[0] for cut in cuts], [cut[2] for cut in cuts]
        edits: list[_Edit] = []
        has_new_name = False
        for token in find_tokens(raw, span):
            self._require_time()
            touching = cuts[bisect_right(ends, token.start) : bisect_left(starts, token.end)]
            new = self._read_token(raw, token, touching, depth, reads_all=reads_all)
            if new is not None:
                edits.append((token.start, token.end, new))
                has_new_name = has_new_name or token.is_name
        return _name_apart(raw, span, edits) if has_new_name else edits

    def _read_token(
        self, raw: bytes, token: JsonToken, cuts: list[_Cut], depth: int, *, reads_all: bool
    ) -> bytes | None:
        """Returns the replacement of a string or a number of JSON in a text."""
        found = raw[token.start : token.end]
        if token.is_number:
            is_read = reads_all or b"e" in found or b"E" in found
            if cuts or (is_read and self._read_number(found.decode(), DATA) is not None):
                return b"0"
            return None
        if not (cuts or reads_all or b"\\" in found):
            return None
        if not reads_all and not _MAY_HIDE.search(found):
            return self._cut_string(raw, token, cuts)
        try:
            text = _decode_text(found)
        except msgspec.DecodeError:
            # Half a character behind an escape: what it hides is found in the text around it.
            text = ""
        new = self._read_text(text, depth + 1) if text else None
        if new is not None:
            return _encode(new)
        return self._cut_string(raw, token, cuts)

    def _cut_string(self, raw: bytes, token: JsonToken, cuts: list[_Cut]) -> bytes | None:
        """Replaces what a pattern matches in a string together with the JSON around it."""
        pieces: list[bytes] = []
        position = token.start
        # No escape is cut in two.
        marks = None
        if raw.find(b"\\", token.start, token.end) >= 0:
            marks = [match.start() for match in _CHARACTER.finditer(raw, token.start, token.end)]
        for start, order, end in cuts:
            first, last = max(start, token.start + 1), min(end, token.end - 1)
            if marks is not None:
                first, last = (marks[bisect_left(marks, place)] for place in (first, last))
            if first < last:
                pieces += (raw[position:first], _encode(self._labels[order].decode())[1:-1])
                position = last
        if not pieces:
            return None
        pieces.append(raw[position : token.end])
        return b"".join(pieces)

    def _screen_text(self, text: str) -> str | None:
        raw = text.encode()
        cuts = self._find_cuts(raw)
        return self._replace(raw, sorted(cuts), [], 0, reads_all=False) if cuts else None

    @property
    def _active(self) -> _Active:
        return self._of_user if self.is_of_user else self._of_others

    def _find_cuts(self, raw: bytes, *, reads_custom: bool = True) -> list[_Cut]:
        """Returns the start, filter and end of each match to redact, and counts the text.

        Raises :class:`ContentBlocked` when a filter blocks the text.
        """
        active = self._active
        self._require_time()
        if active.union is not None:
            if active.has_custom:
                self._require_time_for(active.union, raw, is_first=True)
            if active.union.search(raw) is None:
                return []
        cuts: list[_Cut] = []
        for order, each in active.filters:
            if each.pattern is not None and not reads_custom:
                continue
            self._require_time()
            if each.is_own:
                for recogniser in each.recognisers:
                    self._require_time_for(recogniser.pattern, raw)
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
                self.room -= max(len(self._labels[order]) - (span[1] - span[0]), 0)
                if self.room < 0:
                    raise TooLong
                self._redactions += 1
                if self._redactions > MAX_REDACTIONS:
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

    def _require_time_for(self, pattern: Pattern, raw: bytes, *, is_first: bool = False) -> None:
        """Raises :class:`TooSlow` if a search of a long text would not end in time.

        A search cannot be stopped, so the text is first searched in slices, which takes about as
        long as the whole; ``is_first`` stops at the first match, as the search itself will.
        """
        step = max(_SLICE_WORK // pattern.programsize, 1)
        if len(raw) <= step:
            return
        began = time.monotonic()
        for start in range(0, len(raw), step):
            position, end = start, min(start + step, len(raw))
            while position < end and (match := pattern.search(raw, position, end)):
                position = end if is_first else max(match.end(), position + 1)
            self._require_time()
            if is_first and position == end:
                break
        if 2 * time.monotonic() - began > self._deadline:
            raise TooSlow

    def _require_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise TooSlow


def _merge(cuts: list[_Cut]) -> list[_Cut]:
    """Returns cuts without overlaps; overlapping matches get one label, that of the first."""
    merged: list[_Cut] = []
    for cut in cuts:
        if merged and cut[0] < merged[-1][2]:
            first = merged[-1]
            merged[-1] = (first[0], first[1], max(first[2], cut[2]))
        else:
            merged.append(cut)
    return merged


def _tell_apart(names: list[str], new: Collection[int]) -> list[str]:
    """Numbers the new names that equal another, so that no member of an object vanishes."""
    taken = {name for index, name in enumerate(names) if index not in new}
    numbers: dict[str, int] = {}
    apart = list(names)
    for index in sorted(new):
        name = names[index]
        while apart[index] in taken:
            numbers[name] = numbers.get(name, 1) + 1
            apart[index] = f"{name} {numbers[name]}"
        taken.add(apart[index])
    return apart


def _name_apart(raw: bytes, span: Span, edits: list[_Edit]) -> list[_Edit]:
    """Returns replacements in JSON with names that differ within each object."""
    edited = {start: (end, text) for start, end, text in edits}
    for places in group_names(raw, span):
        new = {index for index, (start, _) in enumerate(places) if start in edited}
        if len(places) < 2 or not new:
            continue
        names = [
            _decode_name(edited[start][1] if start in edited else raw[start:end])
            for start, end in places
        ]
        for index, name in enumerate(_tell_apart(names, new)):
            if index in new and name != names[index]:
                start, end = places[index]
                edited[start] = (end, _encode(name))
    return [(start, end, text) for start, (end, text) in edited.items()]


def _decode_name(raw: bytes) -> str:
    try:
        return _decode_text(raw)
    except msgspec.DecodeError:
        # Half a character behind an escape: no other name equals it.
        return raw.decode()


def _write_out(number: str) -> str:
    """Returns a number with the digits that its exponent adds, unless there are too many."""
    try:
        value = Decimal(number)
    except InvalidOperation:  # an exponent beyond those of Decimal
        return number
    return f"{value:f}" if abs(value.adjusted()) <= _MAX_EXPONENT else number


def _make_pseudonym(text: str, guardrail_id: UUID) -> str:
    """Returns another name for an id, the same for every text of the guardrail that equals it."""
    key = guardrail_id.bytes
    digest = hashlib.blake2b(text.encode(), digest_size=_PSEUDONYM_BYTES, key=key)
    # Letters only, so that no filter takes it for a number.
    return "call_" + digest.hexdigest().translate(_LETTERS)


_LETTERS: Final = str.maketrans("0123456789", "ghijklmnop")


class _Part(msgspec.Struct):
    type: Any = None
    text: Any = None


_decode_part = msgspec.json.Decoder(_Part).decode


def _read_text_of(item: Any) -> str | None:
    """Returns the text of a part of a message; ``None`` for any other part."""
    if first_byte(item) != b"{":
        return None
    part = _decode_part(item)
    is_text = part.type in (None, "text", "input_text", "output_text")
    return part.text if is_text and isinstance(part.text, str) else None


def _decode_escape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


def first_byte(raw: Any) -> bytes:
    """Returns the first byte of a JSON value, which shows its type."""
    return bytes(memoryview(raw)[:1])


def _format_label(label: str) -> bytes:
    return (label if label.startswith("[") and label.endswith("]") else f"[{label}]").encode()
