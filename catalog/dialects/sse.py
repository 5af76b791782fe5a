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

    __slots__ = ("_buffer", "_data", "_limit", "_skip_newline", "_started")

    def __init__(self, *, limit: int = 1_048_576) -> None:
        self._buffer = b""
        self._data: list[bytes] = []
        self._limit = limit
        self._started = False
        self._skip_newline = False

    @property
    def is_complete(self) -> bool:
        """Tells whether everything fed so far ended at an event's end."""
        return not self._buffer.strip(b"\r\n") and not self._data

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the events that this chunk completes; raises :class:`EventTooLarge`."""
        if not self._started:
            chunk = self._buffer + chunk
            if len(chunk) < len(_BOM) and _BOM.startswith(chunk):
                self._buffer = chunk
                return []
            self._started = True
            self._buffer = b""
            chunk = chunk.removeprefix(_BOM)
        # The usual case, and the only one that must be quick: whole events with LF or CRLF.
        if not self._buffer and not self._data and b"\r" not in chunk and not self._skip_newline:
            return self._feed_lines(chunk.split(b"\n"))
        if self._skip_newline and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skip_newline = False
        text = self._buffer + chunk
        if b"\r" in text:
            # A final CR may be half of a CRLF: it ends the line now, and the LF is dropped later.
            self._skip_newline = text.endswith(b"\r")
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return self._feed_lines(text.split(b"\n"))

    def _feed_lines(self, lines: list[bytes]) -> list[bytes]:
        self._buffer = lines.pop()
        events: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif not line:
                if self._data:
                    events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data = []
            elif line == b"data":
                self._data.append(b"")
        if len(self._buffer) + sum(map(len, self._data)) > self._limit or any(
            len(event) > self._limit for event in events
        ):
            raise EventTooLarge
        return events
