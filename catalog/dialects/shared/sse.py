"""Decodes server-sent events, and writes those that every reader of lines understands.

https://html.spec.whatwg.org/multipage/server-sent-events.html describes them.
"""

from __future__ import annotations

from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
# An event may hold a picture: one of 4K as PNG has up to 30 MB.
EVENT_BYTES: Final = 33_554_432
# What a piece of an unfinished event takes of the memory beside its bytes.
_PIECE_BYTES: Final = 56
# The data of events by which servers only keep the connection open.
SILENT: Final = frozenset((b"", b"null", b"{}", b"ping", b"heartbeat", b"keep-alive"))
# Characters that JSON need not escape, and that httpx's ``iter_lines`` takes for the end of a line.
_LINE_ENDS: Final = (
    (b"\xc2\x85", b"\\u0085"),
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
)


def escape_line_ends(events: bytes) -> bytes:
    """Returns events of JSON with U+0085, U+2028 and U+2029 escaped.

    Clients that read lines with httpx or httpx2 break off there (huggingface_hub 2.4), or lose the
    text of such an event (LiteLLM 1.83).
    """
    for character, escape in _LINE_ENDS:
        events = events.replace(character, escape)
    return events


class EventTooLarge(Exception):
    """An event is larger than the limit, which is far above the events of real providers."""


class EventDecoder:
    """Turns pieces of bytes, split at any position, into the data of whole events.

    Lines end in LF, CRLF or CR; ``data`` lines of one event are joined by LF; comments and other
    fields are dropped. An event that the end of the stream cuts off is returned by :meth:`flush`
    alone; :attr:`is_complete` is ``False`` then.
    """

    __slots__ = ("_data", "_limit", "_line", "_size", "_skip_newline", "_started")

    def __init__(self, *, limit: int = EVENT_BYTES) -> None:
        # An unfinished line is kept in pieces, so that a slow stream of small pieces does not copy
        # it repeatedly.
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._started = False
        self._skip_newline = False

    @property
    def is_complete(self) -> bool:
        """Returns whether the bytes so far end at the end of an event."""
        return not any(self._line) and not self._data

    @property
    def is_between_events(self) -> bool:
        """Returns whether the next byte is the first of an event, but not the first of all."""
        return self._started and not (self._line or self._data or self._skip_newline)

    @property
    def held(self) -> int:
        """Returns about how many bytes the unfinished event takes of the memory."""
        return self._size + _PIECE_BYTES * (len(self._line) + len(self._data))

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the events that this chunk completes; raises :class:`EventTooLarge`."""
        if (events := self._split_simple(chunk)) is not None:
            return events
        if not self._started:
            chunk = b"".join(self._line) + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._line = [chunk]
                return []
            self._started = True
            self._line = []
            chunk = chunk.removeprefix(_BOM)
        if self._skip_newline and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skip_newline = False
        if b"\r" in chunk:
            # A final CR may be half of a CRLF: it ends the line now, and the LF is dropped later.
            self._skip_newline = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines:
            if self._line:
                lines[0] = b"".join([*self._line, lines[0]])
            self._size -= sum(map(len, self._line))
            self._line = []
        events = self._parse_lines(lines)
        if rest:
            self._line.append(rest)
            self._size += len(rest)
        if self._size > self._limit + len(b"data: "):
            raise EventTooLarge
        return events

    def flush(self) -> list[bytes]:
        """Returns the event that lacks its line end, or only the blank line, at the end of all."""
        rest, self._line = b"".join(self._line), []
        return self._parse_lines([rest.removeprefix(_BOM), b""])

    def _split_simple(self, chunk: bytes) -> list[bytes] | None:
        """Returns whole events of one line each, the common case; ``None`` for any other bytes."""
        if (
            not self.is_between_events
            or not chunk.startswith(b"data: ")
            or not chunk.endswith(b"\n\n")
            or b"\r" in chunk
            or len(chunk) > self._limit
        ):
            return None
        events = chunk[6:-2].split(b"\n\ndata: ")
        # There are no line ends other than those between the events.
        return events if chunk.count(b"\n") == 2 * len(events) else None

    def _parse_lines(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._add(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line:
                if self._data:
                    events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data = []
                    self._size = 0
            elif line == b"data":
                self._add(b"")
        return events

    def _add(self, data: bytes) -> None:
        # The joining LF counts too: otherwise empty lines could accumulate without limit.
        self._size += len(data) + bool(self._data)
        self._data.append(data)
        if self._size > self._limit:
            raise EventTooLarge
