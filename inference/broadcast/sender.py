"""The source of broadcasts: pages of generations for destinations, in the order of admission.

A page of which nothing is to be sent takes places too: an organization has at most two of them at a
time, so the reading of its destinations delays no other.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

from accounts.destinations.receivers import Receiver
from accounts.models import BroadcastDestination
from config.clocks.clock import clock
from config.outbound.engine import DeliveryAttempt, DeliveryAttempts, Limits, Source
from config.outbound.sending import SendingOutcome, post
from config.secrets import DecryptionFailed
from inference.broadcast import progress
from inference.broadcast.otlp import render_request
from inference.broadcast.reading import (
    Page,
    RulesTooSlow,
    find_due,
    find_horizon,
    load_destination,
    read_page,
)

logger = logging.getLogger("causeway.broadcast")

# A host has no limit of its own.
LIMITS: Final = Limits(total=16, slow=8, organization=2, receiver=1, host=16, slow_host=8)
# A destination that has nothing more gets its next request so much later, not one for each row.
_REST_SECONDS: Final = 5.0
_MAX_NUMBER: Final = 10_000
# In each minute, the destinations of one organization are read for so many seconds of CPU.
_SECONDS: Final = 10.0
_WINDOW: Final = 60.0


class Broadcaster(Source):
    """Generations for destinations; a run counts those that were sent."""

    duty = "broadcast_generations"

    def __init__(self) -> None:
        self._resting: dict[UUID, float] = {}
        # What the reading for each organization has taken, until when that is counted.
        self._spent: dict[UUID, tuple[float, float]] = {}

    def begin_run(self) -> None:
        self._resting.clear()
        now = time.monotonic()
        self._spent = {key: each for key, each in self._spent.items() if each[0] > now}

    def begin_due(self, attempts: DeliveryAttempts) -> bool:
        horizon = find_horizon()
        for due in find_due():
            if attempts.taken["all"] >= LIMITS.total:
                break
            places = LIMITS.places(due.pk, due.organization_id, None, is_slow=due.is_slow)
            is_resting = self._resting.get(due.pk, 0.0) > time.monotonic()
            if is_resting or not attempts.taken.has_room(places):
                continue
            until, spent = self._spent.get(due.organization_id, (0.0, 0.0))
            if until <= time.monotonic():
                until, spent = time.monotonic() + _WINDOW, 0.0
            elif spent > _SECONDS:
                continue
            if (destination := load_destination(due.pk)) is not None:
                began = time.thread_time()
                page, send = self._read(destination, horizon)
                self._spent[due.organization_id] = until, spent + time.thread_time() - began
                name = f"the broadcast to destination {due.pk}"
                # It rests, too, if what became of it cannot be stored.
                self._resting[due.pk] = time.monotonic() + _REST_SECONDS
                attempts.begin(DeliveryAttempt(name, places, send, partial(self._store, page)))
        return False

    def _read(
        self, destination: BroadcastDestination, horizon: datetime
    ) -> tuple[Page, Callable[[], SendingOutcome] | SendingOutcome]:
        """Returns the next page of a destination and what sends it."""
        try:
            page = read_page(destination, horizon)
        except RulesTooSlow:
            slow = "The regular expressions of the filter rules take too long. Make them simpler."
            return Page(destination), SendingOutcome(slow, detail=slow)
        except Exception as exc:
            # Rules or rows that cannot be read are the fault of one destination. A database that
            # is away fails the next statement too, and ends the run.
            logger.exception("a page of destination %s cannot be read", destination.pk)
            unread = "The generations cannot be read."
            return Page(destination), SendingOutcome(unread, detail=type(exc).__name__)
        if not page.generations:
            return page, SendingOutcome()
        try:
            return page, partial(_send, page, destination.receiver())
        except DecryptionFailed:
            lost = "The stored headers cannot be read. Enter them again."
            return page, SendingOutcome(lost, detail=lost)

    def _store(self, page: Page, outcome: SendingOutcome) -> int:
        if outcome.error:
            progress.store_failure(page, outcome, clock.now())
            return 0
        rejected = min(_read_rejected(outcome.body), len(page.generations))
        is_stored = progress.store_success(page, rejected, duration_ms=outcome.duration_ms)
        if page.has_more:
            self._resting.pop(page.destination.pk, None)
        return len(page.generations) - rejected if is_stored else 0


broadcaster: Final = Broadcaster()


def _send(page: Page, receiver: Receiver) -> SendingOutcome:
    """Sends a page in a thread of its own, which touches no database."""
    try:
        body = render_request(page.destination, page.generations)
    except Exception as exc:
        logger.exception("a page of destination %s cannot be sent", page.destination.pk)
        # A row that cannot be rendered is treated as one that the receiver refuses.
        return SendingOutcome("The request failed.", 422, detail=type(exc).__name__)
    outcome = post(receiver.url, receiver.headers, body, method=receiver.method)
    if outcome.error and outcome.status is not None:
        outcome = replace(outcome, error=f"The receiver answered with HTTP {outcome.status}.")
    return outcome


def _read_rejected(text: bytes) -> int:
    """Returns the number of spans that an answer of OTLP rejects; they must not be sent again."""
    try:
        body: Any = json.loads(text)
        number = int(body["partialSuccess"]["rejectedSpans"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0
    return number if 0 < number <= _MAX_NUMBER else 0
