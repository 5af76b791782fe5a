"""Parses streams of completions."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import msgspec

from catalog.dialects.base import (
    Chunk,
    InvalidReply,
    InvalidStream,
    check_answer,
    decode_object,
)
from catalog.dialects.openai.members import (
    NULL,
    Choice,
    add_reasoning,
    count_bytes,
    decode_choices,
    decode_text,
    find_finish_reason,
    find_finished,
    measure_choices,
    parse_choices,
    parse_usage,
    raise_for_error,
    read_text,
)
from catalog.dialects.shared.sse import EventDecoder, EventTooLarge

# What a JSON text never holds as it is: a quote, a backslash or a control character.
_SPECIAL = re.compile(rb'["\\\x00-\x1f]')

# Finds the text of a member that holds output.
_OUTPUT: Final = re.compile(
    rb'"(?:content|reasoning|reasoning_content|text)": ?("(?:[^"\\]|\\.)*+")'
)
# The number of times that the parser of a stream searches for the position of the text. More than
# one, because a stream may change from one kind of output to another; limited, because in some
# streams the position always changes.
_MAX_SEARCHES: Final = 8
# A larger event is scanned before it is decoded.
_LARGE_EVENT_BYTES: Final = 16 * 1024


class Repeats(NamedTuple):
    """Events at the start of some bytes: their texts, the bytes of these, and their end."""

    texts: list[bytes]
    text_bytes: int
    end: int


def find_repeats(data: bytes, head: bytes, tail: bytes) -> Repeats | None:
    """Returns the events which are ``head``, a text and ``tail``; ``None`` if there are none.

    The quotes of the text belong to ``head`` and ``tail``. ``data`` begins with an event. Texts
    with escapes or beyond ASCII are left to a JSON parser. The time for an event is less than a
    tenth of that for parsing it, because the bytes are only split and compared.
    """
    start, stop = b"data: " + head, tail + b"\n\n"
    end = data.rfind(stop) + len(stop)
    if end < len(start) + len(stop) or not data.startswith(start):
        return None
    # Every second line is the blank one that ends an event. Splitting by one byte takes half the
    # time of splitting by the bytes between two texts.
    lines = data[:end].split(b"\n")[:-1:2]
    texts = [line[len(start) : -len(tail)] for line in lines]
    # Together again they are the same bytes only if each of the lines is a repeat.
    if (stop + start).join(texts) != data[len(start) : end - len(stop)]:
        return None
    joined = b"".join(texts)
    if not joined.isascii() or _SPECIAL.search(joined):
        return None
    return Repeats(texts, len(joined), end)


def end_of_second_event(data: bytes) -> int:
    """Returns the position after the second event of some bytes; their end if there is none."""
    found = data.find(b"\n\n", data.find(b"\n\n") + 2)
    return len(data) if found < 0 else found + 2


class ChoicesParser:
    """Parses the events of one stream; it ignores everything after ``[DONE]``.

    Most events differ from the previous one only in their choices, and most choices only in one
    text. Such an event is recognized by the equal bytes around the difference, and only the
    difference is parsed.
    """

    __slots__ = (
        "_after",
        "_allowed",
        "_before",
        "_choices",
        "_decoder",
        "_finished",
        "_frame",
        "_has_aliases",
        "_has_usage",
        "_head",
        "_is_done",
        "_others",
        "_searches_left",
        "_tail",
        "_text",
        "pending",
    )

    def __init__(self, allowed: int) -> None:
        self._decoder = EventDecoder()
        # The number of choices that were asked for.
        self._allowed = allowed
        self._is_done = False
        # The choices that have a finish reason; and whether a usage has come.
        self._finished: frozenset[int] = frozenset()
        self._has_usage = False
        # The bytes before and after the choices, and the slice of the choices.
        self._before = self._after = b""
        self._choices = slice(0)
        # The bytes before and after the text in the choices, quotes included; the slice of the text
        # with its quotes; and the size of the other output in the choices.
        self._head = self._tail = b""
        self._text = slice(0)
        self._others = 0
        # The parts of the choices before and after the text; and whether :func:`add_reasoning`
        # would change choices like these.
        self._frame = (b"", b"")
        self._has_aliases = False
        self._searches_left = _MAX_SEARCHES
        self.pending: list[Chunk] = []

    def feed(self, data: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        self.pending = chunks
        # The first two events show what the others repeat.
        first = 0 if self._head else end_of_second_event(data)
        for piece in (data[:first], data[first:]):
            if rest := piece[self._feed_repeats(piece) :]:
                self._feed_events(rest)
        return chunks

    def _feed_repeats(self, data: bytes) -> int:
        """Adds one chunk for the plain repeats at the start of some bytes; returns their end."""
        if (
            not self._head
            or self._is_done
            or len(data) > _LARGE_EVENT_BYTES
            or not self._decoder.is_between_events
            or self._has_aliases
            or (found := find_repeats(data, self._head, self._tail)) is None
        ):
            return 0
        size = found.text_bytes + len(found.texts) * self._others
        self.pending.append(
            Chunk(
                fields={},
                has_choices=True,
                repeats=found.texts,
                frame=self._frame,
                output_bytes=size,
            )
        )
        return found.end

    def _feed_events(self, data: bytes) -> None:
        """Adds the chunks of the events that some bytes complete."""
        if self._is_done:
            return
        try:
            events = self._decoder.feed(data)
        except EventTooLarge:
            raise InvalidStream("An event of the stream is too large.") from None
        repeats: Chunk | None = None
        for event in events:
            if len(event) > _LARGE_EVENT_BYTES:
                self._check_large(event)
            if (size := self._read_repeat(event)) is not None:
                if repeats is None:
                    repeats = Chunk(fields={}, has_choices=True, repeats=[])
                    self.pending.append(repeats)
                repeats.repeats.append(add_reasoning(event[self._choices]))
                repeats.output_bytes += size
                continue
            repeats = None
            if event[:1] != b"{" and event.strip() == b"[DONE]":
                self._is_done = True
                self.pending.append(Chunk(fields={}, is_done=True))
                break
            self.pending.append(self._chunk(event))

    def finish(self) -> list[Chunk]:
        if self._is_done:
            return []
        if not self._decoder.is_complete:
            raise InvalidStream("The stream was cut off inside an event.")
        if self._has_usage and len(self._finished) >= self._allowed:
            self._is_done = True
            return [Chunk(fields={}, is_done=True, is_unmarked=True)]
        raise InvalidStream("The stream ended without its end mark.")

    def _read_repeat(self, event: bytes) -> int | None:
        """Returns the output size of an event that repeats the last one except for its choices.

        Returns ``None`` for every other event.
        """
        if self._head and event.startswith(self._head) and event.endswith(self._tail):
            try:
                return self._others + count_bytes(decode_text(event[self._text]))
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
        before, after = self._before, self._after
        if not before or not event.startswith(before) or not event.endswith(after):
            return None
        raw = event[self._choices]
        try:
            self._check_choices(choices := decode_choices(raw))
            if not raw.isascii():
                # The choices are relayed without decoding, and must be UTF-8 nevertheless.
                raw.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if not choices or find_finish_reason(choices) is not None or b"\n" in raw:
            return None
        size = measure_choices(choices)
        if self._searches_left:
            self._searches_left -= 1
            self._note_text(raw, size)
        return size

    def _note_text(self, raw: bytes, size: int) -> None:
        """Stores the bytes around the text in the choices, if one text makes up the output.

        A value that begins with a quote is a text, in any object. The sizes with and without the
        text show whether the text counts as output.
        """
        self._head = b""
        for found in _OUTPUT.finditer(raw):
            start, end = found.span(1)
            try:
                others = measure_choices(decode_choices(raw[:start] + b'""' + raw[end:]))
                length = count_bytes(decode_text(found[1]))
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if length and others + length == size:
                self._head = self._before + raw[: start + 1]
                self._tail = raw[end - 1 :] + self._after
                self._text = slice(len(self._head) - 1, 1 - len(self._tail) or None)
                self._others = others
                self._frame = raw[: start + 1], raw[end - 1 :]
                self._has_aliases = add_reasoning(raw) != raw

    def _note_frame(self, event: bytes, fields: dict[str, msgspec.Raw], *, is_blank: bool) -> None:
        """Stores the bytes around the choices of an event without a usage."""
        self._before = self._head = b""
        if is_blank or fields.get("usage", NULL) != NULL:
            return
        before, _, after = event.partition(bytes(fields["choices"]))
        # JSON parsers use the last of several equal keys, so the key must occur only once.
        is_unique = before.count(b'"choices"') == 1 and b'"choices"' not in after
        if is_unique and before.rstrip().endswith(b'"choices":'):
            self._before, self._after = before, after
            self._choices = slice(len(before), -len(after) or None)

    def _check_large(self, event: bytes) -> None:
        """Raises :class:`InvalidStream` for an event that would cost too much to decode."""
        try:
            check_answer(event, self._allowed)
        except InvalidReply as exc:
            raise InvalidStream(str(exc)) from None

    def _check_choices(self, choices: list[Choice]) -> None:
        """Raises :class:`InvalidStream` for more choices than were asked for."""
        if len(choices) > self._allowed or any(
            isinstance(each.index, int) and each.index >= self._allowed for each in choices
        ):
            raise InvalidStream(f"It has more than {self._allowed} choices.")

    def _chunk(self, event: bytes) -> Chunk:
        fields = decode_object(event)
        if fields is None:
            raise InvalidStream("An event of the stream is not a JSON object.")
        raise_for_error(fields)
        try:
            choices = parse_choices(fields)
        except InvalidReply as exc:
            raise InvalidStream(str(exc)) from None
        self._check_choices(choices)
        self._note_frame(event, fields, is_blank=not choices)
        fields["choices"] = add_reasoning(fields["choices"])
        usage = parse_usage(fields) if "usage" in fields else None
        finish_reason = find_finish_reason(choices)
        if usage is not None:
            self._has_usage = True
        if finish_reason is not None:
            self._finished |= find_finished(choices)
        return Chunk(
            fields=fields,
            model=read_text(fields, "model"),
            usage=usage,
            finish_reason=finish_reason,
            output_bytes=measure_choices(choices),
            has_choices=bool(choices),
            upstream_id=read_text(fields, "id"),
        )
