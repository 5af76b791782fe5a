"""Server-sent events, read as the WHATWG HTML standard describes them (section 9.2.6)."""

from __future__ import annotations

from typing import Final

_BOM: Final = b"\xef\xbb\xbf"


class EventTooLarge(Exception):
    """One event is larger than anything that a provider sends in earnest."""


class EventDecoder:
    """Turns chunks of bytes, however they were cut, into the data of whole events.

    Lines end in LF, CRLF or CR; ``data`` lines of one event are joined by LF; comments and other
    fields are dropped. An event that the end of the stream cut off is never returned, and
    :attr:`is_complete` tells of it.
    """

    __slots__ = ("_data", "_limit", "_line", "_size", "_skip_newline", "_started")

    def __init__(self, *, limit: int = 1_048_576) -> None:
        # An unfinished line is kept in pieces, so that a slow drip is not copied again and again.
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._size = 0
        self._limit = limit
        self._started = False
        self._skip_newline = False

    @property
    def is_complete(self) -> bool:
        """Tells whether everything fed so far ended at an event's end."""
        return not any(self._line) and not self._data

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the events that this chunk completes; raises :class:`EventTooLarge`."""
        if (events := self._whole(chunk)) is not None:
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
        events = self._events(lines)
        if rest:
            self._line.append(rest)
            self._size += len(rest)
        if self._size > self._limit + len(b"data: "):
            raise EventTooLarge
        return events

    def _whole(self, chunk: bytes) -> list[bytes] | None:
        """Reads whole events of one line each, which is how most come; ``None`` for all others."""
        if (
            not self._started
            or self._line
            or self._data
            or self._skip_newline
            or not chunk.startswith(b"data: ")
            or not chunk.endswith(b"\n\n")
            or b"\r" in chunk
            or len(chunk) > self._limit
        ):
            return None
        events = chunk[6:-2].split(b"\n\ndata: ")
        # No line ends but those between the events.
        return events if chunk.count(b"\n") == 2 * len(events) else None

    def _events(self, lines: list[bytes]) -> list[bytes]:
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
        # The joining LF counts too: lines without a character must not gather without end.
        self._size += len(data) + bool(self._data)
        self._data.append(data)
        if self._size > self._limit:
            raise EventTooLarge
