"""The duty that serves broadcast destinations; at least once, in the order of admission.

One thread reads the database and stores results; a thread for each request waits for its receiver.
An organization has at most two requests at a time, and destinations that fail at most half of all,
so no receiver delays what another organization is sent. A request that is still open when the duty
ends is collected by its next run.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from accounts.destinations.models import BroadcastDestination
from accounts.destinations.receivers import Receiver
from config.secrets import DecryptionFailed
from inference.broadcast import progress, transport
from inference.broadcast.otlp import render_request
from inference.broadcast.reading import Page, find_due, find_horizon, read_page
from inference.broadcast.transport import Answer

logger = logging.getLogger("causeway.broadcast")

_MOST: Final = 16
_MOST_FAILING: Final = _MOST // 2
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
            if not self._begin_due() and not self._open:
                break
            sent += self._collect(_LOOK_SECONDS)
        return sent

    def _begin_due(self) -> bool:
        """Begins requests to due destinations; returns whether one of them has more to be read."""
        now, horizon = find_horizon()
        has_more = False
        for destination in self._choose(list(find_due())):
            page = read_page(destination, horizon)
            if page.generations:
                self._begin(page, now)
            elif page.has_moved:
                progress.store_success(page)
            if page.has_more:
                has_more = True
            else:
                self._resting[destination.pk] = time.monotonic() + _REST_SECONDS
        return has_more

    def _choose(self, due: Iterable[BroadcastDestination]) -> Iterable[BroadcastDestination]:
        """Yields the destinations to which a request may begin now."""
        for destination in due:
            if len(self._open) >= _MOST:
                return
            pages = self._open.values()
            of_organizations = Counter(page.destination.organization_id for page in pages)
            failing = sum(page.destination.progress.failures > 0 for page in pages)
            if (
                destination.pk not in self._open
                and self._resting.get(destination.pk, 0.0) <= time.monotonic()
                and of_organizations[destination.organization_id] < _MOST_OF_AN_ORGANIZATION
                and (destination.progress.failures == 0 or failing < _MOST_FAILING)
            ):
                yield destination

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
                if progress.store_success(page, rejected):
                    sent += len(page.generations) - rejected
            else:
                progress.store_failure(page, answer, find_horizon()[0])


broadcaster: Final = Broadcaster()
