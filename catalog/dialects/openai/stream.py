"""Parses streams of completions."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

import msgspec

from catalog.dialects.base import Chunk, InvalidReply, InvalidStream, check_answer, decode_object
from catalog.dialects.openai.members import (
    NULL,
    PLAIN_REASONS,
    Choice,
    add_reasoning,
    count_bytes,
    count_pictures,
    decode_choices,
    decode_text,
    find_finish_reason,
    find_usage,
    measure_choices,
    parse_choices,
    parse_usage,
    raise_for_error,
    raise_for_lone_error,
    read_text,
)
from catalog.dialects.openai.repair import Repairs
from catalog.dialects.shared.raw import count_characters
from catalog.dialects.shared.replies import (
    WITHOUT_DATA,
    WITHOUT_LINE_END,
    WITHOUT_MARK,
    split_calls,
)
from catalog.dialects.shared.sse import SILENT, EventDecoder, EventTooLarge

# What a JSON text never holds as it is: a quote, a backslash or a control character.
_SPECIAL = re.compile(rb'["\\\x00-\x1f]')

_encode = msgspec.json.Encoder().encode
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
_SHORT_EVENT_BYTES: Final = 16
_NO_CHOICES: Final = msgspec.Raw(b"[]")


class RepeatedEvents(NamedTuple):
    """Events at the start of some bytes: their texts, the bytes of these, and their end."""

    texts: list[bytes]
    text_bytes: int
    end: int


def find_repeats(data: bytes, head: bytes, tail: bytes) -> RepeatedEvents | None:
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
    return RepeatedEvents(texts, len(joined), end)


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
        "_after", "_allowed", "_before", "_begun", "_choices", "_decoder", "_finished", "_frame",
        "_has_aliases", "_head", "_is_counted", "_is_done", "_is_text", "_others", "_repairs",
        "_said", "_searches_left", "_tail", "_text", "notes", "pending",
    )  # fmt: skip

    def __init__(self, allowed: int, *, is_text: bool = False) -> None:
        self._decoder = EventDecoder()
        # The number of choices that were asked for.
        self._allowed = allowed
        self._is_done = False
        self._is_text = is_text
        # What was repaired, and the repairs of choices once one had a mark; and the choices whose
        # deltas had output, which a whole message would repeat.
        self.notes: set[str] = set()
        self._repairs: Repairs | None = None
        self._said: set[int] = set()
        # The choices that have begun and those that have a finish reason; and whether one of these
        # had the usage beside it.
        self._begun: set[Any] = set()
        self._finished: frozenset[int] = frozenset()
        self._is_counted = False
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

    @property
    def held(self) -> int:
        return self._decoder.held + (0 if self._repairs is None else self._repairs.held)

    def feed(self, data: bytes) -> list[Chunk]:
        chunks: list[Chunk] = []
        self.pending = chunks
        # The first two events show what the others repeat.
        first = 0 if self._head else end_of_second_event(data)
        for piece in (data[:first], data[first:]):
            rest = piece[self._feed_repeats(piece) :]
            if not rest or self._is_done:
                continue
            try:
                events = self._decoder.feed(rest)
            except EventTooLarge:
                raise InvalidStream("An event of the stream is too large.") from None
            self._read_events(events)
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

    def _read_events(self, events: list[bytes]) -> None:
        """Adds the chunks of some events; those that only keep the connection open have none."""
        repeats: Chunk | None = None
        for event in events:
            if len(event) > _LARGE_EVENT_BYTES:
                self._check_large(event)
            if (sizes := self._read_repeat(event)) is not None:
                if repeats is None:
                    repeats = Chunk(fields={}, has_choices=True, repeats=[])
                    self.pending.append(repeats)
                repeats.repeats.append(add_reasoning(event[self._choices]))
                size, sound = sizes
                repeats.output_bytes += size + sound
                repeats.sound += sound
                continue
            repeats = None
            if event[:1] != b"{" and event.strip() == b"[DONE]":
                self._is_done = True
                if self._repairs is not None:
                    self._close_calls(self._repairs)
                self.pending.append(Chunk(fields={}, is_done=True))
                break
            if len(event) < _SHORT_EVENT_BYTES and event.strip().lower() in SILENT:
                self.notes.add(WITHOUT_DATA)
            elif (chunk := self._chunk(event)) is not None:
                self.pending += [chunk] if self._repairs is None else split_calls(chunk)

    def _close_calls(self, repairs: Repairs) -> None:
        """Adds the finish reason of calls that lack it, and their arguments."""
        if choices := repairs.close():
            ends = Chunk(fields={"choices": choices}, finish_reason="tool_calls", has_choices=True)
            self.pending += split_calls(ends)

    def finish(self) -> list[Chunk]:
        if self._is_done:
            return []
        self.pending = []
        if not self._decoder.is_complete:
            try:
                self._read_events(self._decoder.flush())
            except InvalidStream:
                raise InvalidStream("The stream was cut off inside an event.") from None
            self.notes.add(WITHOUT_LINE_END)
        if not self._is_done:
            # A server may answer fewer choices than were asked for; its usage then ends them.
            is_whole = self._is_counted and self._begun <= self._finished
            if not is_whole and len(self._finished) < self._allowed:
                raise InvalidStream("The stream ended without its end mark.")
            self.notes.add(WITHOUT_MARK)
            self._is_done = True
            self.pending.append(Chunk(fields={}, is_done=True, is_unmarked=True))
        return self.pending

    def _read_repeat(self, event: bytes) -> tuple[int, int] | None:
        """Returns the sizes of text and sound of an event that repeats all but its choices.

        Returns ``None`` for every other event.
        """
        if self._head and event.startswith(self._head) and event.endswith(self._tail):
            try:
                return self._others + count_bytes(decode_text(event[self._text])), 0
            except (msgspec.DecodeError, UnicodeDecodeError):
                pass
        before, after = self._before, self._after
        if not before or not event.startswith(before) or not event.endswith(after):
            return None
        raw = event[self._choices]
        try:
            is_marked = self._check_choices(choices := decode_choices(raw))
            if not raw.isascii():
                # The choices are relayed without decoding, and must be UTF-8 nevertheless.
                raw.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if is_marked or not choices or find_finish_reason(choices) is not None or b"\n" in raw:
            return None
        size, sound = measure_choices(choices)
        if size or sound:
            # This choice is the only one: the events of several are read whole.
            self._said.add(0)
        # What is repeated beside a text has a size and no sound.
        if self._searches_left and not sound:
            self._searches_left -= 1
            self._note_text(raw, size)
        return size, sound

    def _note_text(self, raw: bytes, size: int) -> None:
        """Stores the bytes around the text in the choices, if one text makes up the output.

        A value that begins with a quote is a text, in any object. The sizes with and without the
        text show whether the text counts as output.
        """
        self._head = b""
        for found in _OUTPUT.finditer(raw):
            start, end = found.span(1)
            try:
                others, _ = measure_choices(decode_choices(raw[:start] + b'""' + raw[end:]))
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
        # The choices of several may have a usage each, by which all their texts are measured.
        if is_blank or self._allowed > 1 or fields.get("usage", NULL) != NULL:
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

    def _check_choices(self, choices: list[Choice]) -> bool:
        """Returns whether a choice has a mark, so that it must be repaired.

        Raises :class:`InvalidStream` for more choices than were asked for.
        """
        is_marked = False
        for each in choices:
            index = each.index
            if isinstance(index, int) and index >= self._allowed:
                break
            number = index if isinstance(index, int) else 0
            self._begun.add(number)
            part, reason = each.delta, each.finish_reason
            if reason is not None:
                if reason:
                    self._finished |= {number}
                is_marked |= self._repairs is not None or reason not in PLAIN_REASONS
            if not isinstance(index, int):
                is_marked = True
            elif self._is_text:
                is_marked = is_marked or not each.text or each.text == NULL
            elif part is None or part.is_marked or part.images:
                is_marked = True
        else:
            if len(choices) <= self._allowed:
                return is_marked
        raise InvalidStream(f"It has more than {self._allowed} choices.")

    def _chunk(self, event: bytes) -> Chunk | None:
        """Returns the chunk of an event; ``None`` if it has neither choices nor a usage."""
        fields: dict[str, Any] | None = decode_object(event)
        if fields is None:
            raise InvalidStream("An event of the stream is not a JSON object.")
        raise_for_error(fields)
        if fields.get("choices", NULL) == NULL:
            raise_for_lone_error(fields)
            self.notes.add(WITHOUT_DATA)
            if fields.get("usage", NULL) == NULL:
                return None
            fields["choices"] = _NO_CHOICES
        try:
            choices = parse_choices(fields)
            is_marked = self._check_choices(choices)
            self._note_frame(event, fields, is_blank=not choices or is_marked)
            if is_marked:
                if self._repairs is None:
                    self._repairs = Repairs(self._said, is_text=self._is_text)
                fields["choices"] = self._repairs.repair(fields["choices"], self.notes)
                if b'"message"' in event:
                    # What a whole message repeats is no output.
                    choices = decode_choices(_encode(fields["choices"]))
        except InvalidReply as exc:
            raise InvalidStream(str(exc)) from None
        if not is_marked and b'"reasoning' in event:
            fields["choices"] = add_reasoning(fields["choices"])
        usage = parse_usage(fields) if "usage" in fields else None
        if usage is None and ("timings" in fields or "x_groq" in fields):
            usage = find_usage(fields)
        finish_reason, (size, sound) = find_finish_reason(choices), measure_choices(choices)
        if usage is not None and finish_reason is not None:
            self._is_counted = True
        for each in choices if (size or sound) and not is_marked else ():
            if not choices[1:] or any(measure_choices([each])):
                self._said.add(each.index)
        return Chunk(
            fields=fields,
            model=read_text(fields, "model"),
            usage=usage,
            finish_reason=finish_reason,
            output_bytes=size + sound,
            characters=measure_choices(choices, count_characters)[0] if self._allowed > 1 else 0,
            sound=sound,
            has_choices=bool(choices),
            upstream_id=read_text(fields, "id"),
            pictures=count_pictures(fields["choices"]) if is_marked else 0,
        )
