"""The duty that serves broadcast destinations; at least once, in the order of admission.

One thread reads the database and stores results; a thread for each request waits for its receiver.
An organization has at most two requests at a time. Destinations that fail or are slow have at most
half of all, so no receiver delays what another organization is sent, even if receivers of many
organizations take everything in the end. Neither does the reading: of the destinations of an
organization, two at most are read before the others get their turn. A request that is still open
when the duty ends is collected by its next run.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from accounts.destinations.receivers import Receiver
from config.secrets import DecryptionFailed
from inference.broadcast import progress, transport
from inference.broadcast.otlp import render_request
from inference.broadcast.reading import (
    Due,
    Page,
    find_due,
    find_horizon,
    load_destination,
    read_page,
)
from inference.broadcast.transport import Answer

logger = logging.getLogger("causeway.broadcast")

_MOST: Final = 16
_MOST_SLOW: Final = _MOST // 2
_MOST_OF_AN_ORGANIZATION: Final = 2
_RUN_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 2.0
# A destination that has nothing more gets its next request so much later, not one for each row.
_REST_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Result:
    page: Page
    answer: Answer


class Broadcaster:
    """Sends pages to destinations, and keeps the requests that are under way."""

    def __init__(self) -> None:
        self._open: dict[UUID, Page] = {}
        self._resting: dict[UUID, float] = {}
        self._results: queue.SimpleQueue[_Result] = queue.SimpleQueue()

    def run(self) -> int:
        """Sends until nothing is left, or for a minute; returns the number of generations sent."""
        until = time.monotonic() + _RUN_SECONDS
        self._resting.clear()
        sent = self._collect(0.0)
        while time.monotonic() < until:
            has_more = self._begin_due()
            if not has_more and not self._open:
                break
            sent += self._collect(0.0 if has_more else _LOOK_SECONDS)
        return sent

    def _begin_due(self) -> bool:
        """Begins requests to due destinations; returns whether more can be read at once."""
        now, horizon = find_horizon()
        has_more = False
        reads: Counter[UUID] = Counter()
        for due in find_due():
            if len(self._open) >= _MOST:
                break
            if not self._may_begin(due):
                continue
            if reads[due.organization_id] >= _MOST_OF_AN_ORGANIZATION:
                has_more = True
                continue
            reads[due.organization_id] += 1
            has_more |= self._serve(due, now, horizon)
        return has_more

    def _may_begin(self, due: Due) -> bool:
        """Returns whether a request to a destination may begin now."""
        pages = self._open.values()
        own = [page for page in pages if page.destination.organization_id == due.organization_id]
        slow = sum(page.destination.progress.is_slow for page in pages)
        return (
            due.pk not in self._open
            and self._resting.get(due.pk, 0.0) <= time.monotonic()
            and len(own) < _MOST_OF_AN_ORGANIZATION
            and (not due.is_slow or slow < _MOST_SLOW)
        )

    def _serve(self, due: Due, now: datetime, horizon: datetime) -> bool:
        """Sends the next page of a destination; returns whether more can be read at once."""
        destination = load_destination(due.pk)
        if destination is None:
            return False
        try:
            page = read_page(destination, horizon)
        except Exception as exc:
            # Rules or rows that cannot be read are the fault of one destination. A database that
            # is away fails the next statement too, and ends the run.
            logger.exception("a page of destination %s cannot be read", destination.pk)
            unread = "The generations cannot be read."
            progress.store_failure(Page(destination), Answer(unread, type(exc).__name__), now)
            return False
        if page.generations:
            self._begin(page, now)
        elif page.has_moved:
            progress.store_success(page)
        if not page.has_more:
            self._resting[destination.pk] = time.monotonic() + _REST_SECONDS
        return page.has_more and not page.generations

    def _begin(self, page: Page, now: datetime) -> None:
        try:
            receiver = page.destination.receiver()
        except DecryptionFailed:
            lost = "The stored headers cannot be read. Enter them again."
            progress.store_failure(page, Answer(lost, lost), now)
            return
        self._open[page.destination.pk] = page
        thread = threading.Thread(
            target=self._send, args=(page, receiver), name="broadcast", daemon=True
        )
        thread.start()

    def _send(self, page: Page, receiver: Receiver) -> None:
        """Sends a page in a thread of its own, which touches no database."""
        try:
            answer = transport.send(receiver, render_request(page.destination, page.generations))
        except Exception as exc:
            # A row that cannot be rendered is treated as one that the receiver refuses.
            logger.exception("a page of destination %s cannot be sent", page.destination.pk)
            answer = Answer("The request failed.", type(exc).__name__, is_body_refused=True)
        self._results.put(_Result(page, answer))

    def _collect(self, seconds: float) -> int:
        """Stores the results that arrive; waits for the first one. Returns what was sent."""
        sent = 0
        wait = seconds if self._open else 0.0
        while True:
            try:
                result = self._results.get(timeout=wait) if wait else self._results.get_nowait()
            except queue.Empty:
                return sent
            wait = 0.0
            page, answer = result.page, result.answer
            self._open.pop(page.destination.pk, None)
            if answer.is_taken:
                rejected = min(answer.rejected, len(page.generations))
                if progress.store_success(page, rejected, duration_ms=answer.duration_ms):
                    sent += len(page.generations) - rejected
            else:
                progress.store_failure(page, answer, find_horizon()[0])


broadcaster: Final = Broadcaster()
