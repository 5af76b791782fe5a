"""What the work for one request takes of its worker: buffered bytes, threads, and loop time."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import UUID

from prometheus_client import Counter

from catalog.dialects.base import Body, Chunk, InvalidStream, StreamParser
from config.egress.client import OutboundResponse
from config.live_settings import settings
from config.server.bulkheads import Occupancy
from config.server.load.large_work import LARGE_BYTES, LargeWork
from inference.exchange.failures import blame_answer

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

# The bytes of a stream that are parsed and rendered at once. They hold 400 events at most, which
# take 3 ms; most reads are shorter.
_STEP_BYTES: Final = 8 * 1024
# In each window, the answers of one organization may take this part of the loop while others have
# requests. So the others wait for half a window at most, and get the other half of the loop.
_WINDOW_SECONDS: Final = 0.02
_SHARE: Final = 0.5
_SHARE_SECONDS: Final = _WINDOW_SECONDS * _SHARE
# What a byte of an upstream costs before it is parsed: decryption, about 1 ms a MiB.
_SECONDS_PER_BYTE: Final = 1e-9
_LOG_SECONDS: Final = 60.0
_THROTTLED: Final = Counter(
    "causeway_throttled_seconds_total",
    "Seconds for which the answers of an organization waited so that others are served.",
    ("reason",),
)
_LOOP_TIME: Final = _THROTTLED.labels("loop_time")


class LoopTime:
    """Counts the time that each organization's answers take of the loop in the present window."""

    def __init__(
        self, is_shared: Callable[[], bool], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Starts the first window; ``is_shared`` tells whether several organizations are active."""
        self._is_shared = is_shared
        # Returns the time at which a step begins, for :meth:`count`.
        self.now = clock
        self._end = clock() + _WINDOW_SECONDS
        # The seconds of each organization in this window, or in one that has just ended.
        self.used: dict[UUID | None, float] = {}
        self._logged_at = -_LOG_SECONDS

    def count(self, organization_id: UUID | None, began: float, size: int = 0) -> None:
        """Counts a step that ends now; ``size`` is the number of bytes received for it."""
        now = self.now()
        if now >= self._end:
            self.used.clear()
            self._end = now + _WINDOW_SECONDS
        used = self.used.get(organization_id, 0.0)
        self.used[organization_id] = used + now - began + size * _SECONDS_PER_BYTE

    async def wait_turn(self, organization_id: UUID | None) -> None:
        """Waits until the organization may use the loop again; usually returns at once."""
        while seconds := self._find_wait(organization_id):
            _LOOP_TIME.inc(seconds)
            now = self.now()
            if now - self._logged_at >= _LOG_SECONDS:
                self._logged_at = now
                logger.warning(
                    "organization %s takes more than %d %% of the event loop: its answers wait",
                    organization_id,
                    round(_SHARE * 100),
                )
            await asyncio.sleep(seconds)

    def _find_wait(self, organization_id: UUID | None) -> float:
        """Returns the seconds until the end of the window; 0 if the organization need not wait."""
        if self.used.get(organization_id, 0.0) < _SHARE_SECONDS:
            return 0.0
        left = self._end - self.now()
        return left if left > 0 and self._is_shared() else 0.0


class Workload:
    """Does the work for one request within the budgets of its organization."""

    __slots__ = ("_large_work", "_occupancy", "loop_time", "organization_id")

    def __init__(self, occupancy: Occupancy, large_work: LargeWork, loop_time: LoopTime) -> None:
        self._occupancy = occupancy
        self._large_work = large_work
        self.loop_time = loop_time
        self.organization_id = occupancy.organization_id

    async def run(
        self, size: int, function: Callable[..., Result], *arguments: Any, copies: int = 0
    ) -> Result:
        """Calls a function that works on this number of bytes; a large number in a thread.

        ``copies`` is how often the function has these bytes in memory while it runs. Raises
        :class:`TooManyRequests` if too much large work of the organization waits.
        """
        if size > LARGE_BYTES:
            return await self._large_work.run(
                self.organization_id, function, *arguments, scratch=copies * size
            )
        loop_time, owner = self.loop_time, self.organization_id
        if loop_time.used.get(owner, 0.0) >= _SHARE_SECONDS:
            await loop_time.wait_turn(owner)
        began = loop_time.now()
        try:
            return function(*arguments)
        finally:
            loop_time.count(owner, began)

    def reserve(self, size: int) -> None:
        """Counts bytes that the request is about to hold; see :meth:`Occupancy.reserve`."""
        self._occupancy.reserve(size)

    def add(self, size: int) -> None:
        """Counts bytes that the request holds already, if they are many."""
        if size > LARGE_BYTES:
            self._occupancy.add(size)

    def release(self, size: int) -> None:
        """Gives bytes back that the request holds no longer."""
        self._occupancy.release(size)

    def keep(self, more: int) -> None:
        """Counts what a stream keeps more than before, or less; see :meth:`Occupancy.keep`."""
        self._occupancy.keep(more)

    def note_unread(self, size: int) -> None:
        """Counts what waits of a stream; see :meth:`Occupancy.note_unread`."""
        self._occupancy.note_unread(size)

    async def read_answer(self, response: OutboundResponse) -> Body:
        """Returns a whole answer, whose bytes are counted as the organization's from then on.

        Raises the errors of :meth:`OutboundResponse.read` and of :meth:`Occupancy.reserve`. Nothing
        of an answer that failed stays counted.
        """
        held = self._occupancy.held
        received = counted = 0
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and LARGE_BYTES < int(length) <= settings.MAX_UPSTREAM_BYTES:
            # What the organization may not hold is not read in part either.
            counted = int(length)
            self._occupancy.reserve(counted)

        async def count(size: int) -> None:
            nonlocal received, counted
            received += size
            # Short answers are bounded by the number of requests.
            if received > LARGE_BYTES:
                if received > counted:
                    self._occupancy.reserve(received - counted)
                    counted = received
                began = self.loop_time.now() - response.take_spent()
                self.loop_time.count(self.organization_id, began, size)
                await self.loop_time.wait_turn(self.organization_id)

        try:
            return await response.read(count=count)
        except BaseException:
            self._occupancy.release(self._occupancy.held - held)
            raise

    def forget_answer(self, body: Body) -> None:
        """Gives back the bytes of an answer that was refused."""
        if len(body) > LARGE_BYTES:
            self._occupancy.release(len(body))


class ChunkReader:
    """Reads one stream of a response; any error of its parser is a failure of the stream.

    ``step_bytes`` is the number of bytes that the last step parsed, and ``event_bytes`` the size of
    the events that these bytes completed or continued.
    """

    __slots__ = (
        "_has_chunks",
        "_kept",
        "_large_step",
        "_largest",
        "_parser",
        "_unmeasured",
        "_unread",
        "_workload",
        "event_bytes",
        "response",
        "step_bytes",
    )

    def __init__(
        self, response: OutboundResponse, parser: StreamParser, workload: Workload
    ) -> None:
        self.response = response
        self._parser = parser
        self.event_bytes = self.step_bytes = 0
        self._workload = workload
        self._unread = b""
        self._has_chunks = True
        self._large_step: asyncio.Future[list[Chunk]] | None = None
        # The size of the largest event, the bytes that are counted as kept, and those that may have
        # been kept since they were.
        self._largest = self._kept = self._unmeasured = 0

    def take_whole(self, size: int) -> None:
        """Notes that all of the answer has come at once, in place of a stream."""
        # It is rendered in a thread if it is large.
        self.event_bytes = self._largest = size
        self._count_kept()

    def forget(self) -> None:
        """Gives back what is counted of a stream that failed."""
        self._workload.keep(-self._kept)
        self._kept = 0

    async def read(self) -> list[Chunk] | None:
        """Returns the chunks of the next bytes, maybe none; ``None`` at the end of the body.

        Raises the errors of :meth:`StreamParser.feed` and of :meth:`OutboundResponse.readany`, and
        the refusals of :meth:`Occupancy.keep`. A call that was cancelled may be repeated.
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
            loop_time, owner = self._workload.loop_time, self._workload.organization_id
            if loop_time.used.get(owner, 0.0) >= _SHARE_SECONDS:
                await loop_time.wait_turn(owner)
            began = loop_time.now() - self.response.take_spent()
            piece = self._take_piece()
            self.step_bytes = len(piece)
            # An event that the bytes so far did not end is parsed with these.
            self.event_bytes = len(piece) + (0 if self._has_chunks else self.event_bytes)
            if self.event_bytes <= LARGE_BYTES:
                try:
                    chunks = self._parser.feed(piece)
                except Exception as exc:
                    raise blame_answer(exc, InvalidStream) from None
                self._has_chunks = bool(chunks)
                loop_time.count(owner, began, received)
                self._unmeasured += len(piece)
                if self._unmeasured > LARGE_BYTES:
                    self._count_kept()
                return chunks
            self._large_step = asyncio.ensure_future(
                self._workload.run(self.event_bytes, self._parser.feed, piece)
            )
        # The thread goes on if this call is cancelled, so a further call waits for the same step.
        try:
            chunks = await asyncio.shield(self._large_step)
        except Exception as exc:
            raise blame_answer(exc, InvalidStream) from None
        finally:
            if self._large_step.done():
                self._large_step = None
        self._has_chunks = bool(chunks)
        if chunks:
            self._largest = max(self._largest, self.event_bytes)
        self._count_kept()
        return chunks

    @property
    def pending(self) -> list[Chunk]:
        """Returns the chunks before the fault that :meth:`read` has raised."""
        with suppress(Exception):  # what renames them has met the same fault
            return self._parser.pending
        return []

    def finish(self) -> list[Chunk]:
        """Returns the chunks that the end of the body completes; see :class:`StreamParser`."""
        try:
            return self._parser.finish()
        except Exception as exc:
            raise blame_answer(exc, InvalidStream) from None

    def _count_kept(self) -> None:
        """Counts what the stream keeps beyond its first bytes; raises :class:`GatewayError`.

        The first ones are bounded by the number of streams. The largest event stays in memory when
        it is complete: the next ones are rendered with its members, or the caller reads it slowly.
        """
        unparsed = 0 if self._has_chunks else self.event_bytes
        held = max(self._parser.held, unparsed)
        kept = max(self._largest + held - LARGE_BYTES, 0)
        if kept != self._kept:
            self._workload.keep(kept - self._kept)
            self._kept = kept
        # What may be given back soon is measured again after the next step.
        self._unmeasured = min(held, LARGE_BYTES)

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
