"""Reads the chunks of a stream in steps that are short for the event loop."""

from __future__ import annotations

import asyncio
from typing import Final

from catalog.dialects.base import Chunk, StreamParser
from config.egress.client import OutboundResponse
from config.server.load.large_work import LARGE_BYTES
from inference.exchange.workload import Workload

# The bytes of a stream that are parsed and rendered at once. They hold 400 events at most, which
# take 3 ms; most reads are shorter.
_STEP_BYTES: Final = 8 * 1024


class ChunkReader:
    """Reads one stream; ``response`` and ``parser`` are its parts.

    ``step_bytes`` is the number of bytes that the last step parsed, and ``event_bytes`` the size of
    the events that these bytes completed or continued.
    """

    __slots__ = (
        "_has_chunks",
        "_large_step",
        "_unread",
        "_workload",
        "event_bytes",
        "parser",
        "response",
        "step_bytes",
    )

    def __init__(
        self, response: OutboundResponse, parser: StreamParser, workload: Workload
    ) -> None:
        self.response = response
        self.parser = parser
        self.event_bytes = self.step_bytes = 0
        self._workload = workload
        self._unread = b""
        self._has_chunks = True
        self._large_step: asyncio.Future[list[Chunk]] | None = None

    async def read(self) -> list[Chunk] | None:
        """Returns the chunks of the next bytes, maybe none; ``None`` at the end of the body.

        Raises the errors of :meth:`StreamParser.feed` and of :meth:`OutboundResponse.readany`. A
        call that was cancelled may be repeated.
        """
        if self._large_step is None:
            received = 0
            if self._unread:
                # The rest of a long read: other requests go first.
                await asyncio.sleep(0)
            else:
                self._unread = await self.response.readany()
                received = len(self._unread)
                if not received:
                    return None
            await self._workload.wait_turn()
            began = self._workload.begin_step() - self.response.take_spent()
            piece = self._take_piece()
            self.step_bytes = len(piece)
            # An event that the bytes so far did not end is parsed with these.
            self.event_bytes = len(piece) + (0 if self._has_chunks else self.event_bytes)
            if self.event_bytes <= LARGE_BYTES:
                self._has_chunks = bool(chunks := self.parser.feed(piece))
                self._workload.end_step(began, received)
                return chunks
            self._large_step = asyncio.ensure_future(
                self._workload.run(self.event_bytes, self.parser.feed, piece)
            )
        # The thread goes on if this call is cancelled, so a further call waits for the same step.
        try:
            chunks = await asyncio.shield(self._large_step)
        finally:
            if self._large_step.done():
                self._large_step = None
        self._has_chunks = bool(chunks)
        return chunks

    def _take_piece(self) -> bytes:
        """Returns the next bytes, which end at the end of an event if there is one among them."""
        data = self._unread
        is_in_large_event = not self._has_chunks and self.event_bytes > LARGE_BYTES
        if len(data) <= _STEP_BYTES or is_in_large_event:
            self._unread = b""
            return data
        end = data.rfind(b"\n\n", 0, _STEP_BYTES) + 2
        if end < 2:
            end = _STEP_BYTES
        self._unread = data[end:]
        return data[:end]
