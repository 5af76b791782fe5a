"""Makes the attempts that sources ask for, at least once, outside any transaction.

One thread reads the database and stores results; a thread for each attempt waits for its receiver.
Receivers are bulkheads: an attempt takes a place in each that it belongs to. Receivers that fail or
are slow share half of all places, so that they delay nobody else, even if they belong to many
organizations and take everything in the end.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final

from django.db import DatabaseError, OperationalError, connection, transaction
from django.utils.module_loading import import_string
from psycopg.errors import LockNotAvailable

from config.apps import declaring_apps
from config.outbound.sending import SendingOutcome

logger = logging.getLogger("causeway.work")

# An attempt takes ten seconds at most, but a slow mail server may take them for each of its steps.
LEASE_SECONDS: Final = 120
# After this time a run takes nothing new, so that the lease of the duty records its success.
RUN_SECONDS: Final = 60.0
# How often a run looks for attempts that do not end, and for rows that are no longer locked.
_LOOK_SECONDS: Final = 1.0
_LOCK_MS: Final = 100
# A receiver whose attempts take longer on average is slow, whether they fail or not.
SLOW_MS: Final = 2_000
_ENDLESS: Final = "The attempt did not end."

Place = tuple[Hashable, int]
"""A bulkhead, and the number of attempts that may be in it at once."""


def is_slow(failures: int, mean_ms: int) -> bool:
    """Returns whether a receiver fails, or its attempts take long even if they succeed."""
    return failures > 0 or mean_ms > SLOW_MS


@dataclass(frozen=True, slots=True)
class Limits:
    """The most attempts of a source that run at once: in all, and in each bulkhead."""

    total: int
    slow: int
    organization: int
    receiver: int
    host: int
    slow_host: int

    def places(
        self, receiver: Hashable, organization: Hashable, host: Hashable, *, is_slow: bool
    ) -> tuple[Place, ...]:
        """Returns the places of an attempt; receivers of the operators have no organization."""
        places: list[Place] = [
            ("all", self.total),
            (("receiver", receiver), 1 if is_slow else self.receiver),
            (("host", host), self.host),
        ]
        if is_slow:
            places += [("slow", self.slow), (("slow host", host), self.slow_host)]
        if organization is not None:
            places.append((("organization", organization), self.organization))
        return tuple(places)


class Places(Counter[Hashable]):
    """The places that attempts take."""

    def has_room(self, places: Iterable[Place]) -> bool:
        return all(self[key] < most for key, most in places)

    def take(self, places: Iterable[Place]) -> None:
        self.update(key for key, _ in places)


@dataclass(frozen=True, slots=True, eq=False)
class DeliveryAttempt:
    """Something to send, and what its end changes; two attempts are never equal.

    ``send`` runs in a thread and touches no database, or it is what is known already. ``store``
    stores what became of it, in a transaction that waits for no row for long, and returns what the
    duty counts; it is called again if a row was locked. ``is_mail`` says that the mail server of
    the settings is at fault if the attempt does not end.
    """

    name: str
    places: Sequence[Place]
    send: Callable[[], SendingOutcome] | SendingOutcome = field(repr=False)
    store: Callable[[SendingOutcome], int] = field(repr=False)
    is_mail: bool = False


class DeliveryAttempts:
    """The attempts of one run: those that a thread makes, the places they take, and their results.

    A thread that has not ended when its lease does is given up: a mail server that sends a byte now
    and then never reaches a time limit, and would keep the run from ending. A result whose row is
    locked is late: it keeps its place, is stored when it can be, and is given up at the end of the
    lease too.
    """

    def __init__(self) -> None:
        self.taken = Places()
        self._began: dict[DeliveryAttempt, float] = {}
        self._late: dict[DeliveryAttempt, SendingOutcome] = {}
        self._results: queue.SimpleQueue[tuple[DeliveryAttempt, SendingOutcome]] = (
            queue.SimpleQueue()
        )
        self._looks_at = 0.0

    def __bool__(self) -> bool:
        """Returns whether any is under way."""
        return bool(self._began)

    def begin(self, attempt: DeliveryAttempt) -> None:
        """Takes the places of an attempt, and makes it in a thread."""
        self.taken.take(attempt.places)
        self._began[attempt] = time.monotonic()
        if isinstance(attempt.send, SendingOutcome):
            self._results.put((attempt, attempt.send))
            return
        # A daemon: `work` may end while an attempt runs, and the lease ends by itself.
        make = partial(self._make, attempt, attempt.send)
        threading.Thread(target=make, name="outbound", daemon=True).start()

    def collect(self, seconds: float) -> int:
        """Stores the results that are there; waits for the first. Returns what the duty counts."""
        now, done = time.monotonic(), 0
        if now >= self._looks_at:
            self._looks_at = now + _LOOK_SECONDS
            self._give_up(now - LEASE_SECONDS)
            done = self._store_late()
        with suppress(queue.Empty):
            while True:
                done += self._finish(*self._results.get(timeout=seconds))
                seconds = 0.0
        return done

    def _make(self, attempt: DeliveryAttempt, send: Callable[[], SendingOutcome]) -> None:
        """Makes an attempt in a thread, and always puts its result into the queue.

        A defect of ours ends one attempt as a failure: without a result the run would never end.
        """
        began = time.monotonic()
        try:
            outcome = send()
        except Exception:
            logger.exception("%s failed", attempt.name)
            outcome = SendingOutcome("The service failed to send it.")
        duration_ms = round((time.monotonic() - began) * 1000)
        self._results.put((attempt, replace(outcome, duration_ms=duration_ms)))

    def _finish(self, attempt: DeliveryAttempt, outcome: SendingOutcome) -> int:
        """Stores a result and frees its places; keeps it for later if a row is locked."""
        done = 0
        try:
            with short_locks():
                done = attempt.store(outcome)
        except RowLocked:
            if attempt in self._began:
                self._late[attempt] = outcome
            return 0
        except DatabaseError as exc:
            # What was sent is due again after its lease; the others go on.
            logger.error("the result of %s is not stored: %s", attempt.name, type(exc).__name__)
        self._free(attempt)
        return done

    def _store_late(self) -> int:
        """Tries one late result of each receiver: the others wait for the same row."""
        first = {tuple(attempt.places): attempt for attempt in reversed(self._late)}
        return sum(self._finish(attempt, self._late[attempt]) for attempt in first.values())

    def _free(self, attempt: DeliveryAttempt) -> None:
        """Frees the places of an attempt, unless it was given up."""
        self._late.pop(attempt, None)
        if self._began.pop(attempt, None) is not None:
            self.taken.subtract(key for key, _ in attempt.places)

    def _give_up(self, ended: float) -> None:
        for attempt in [each for each, began in self._began.items() if began <= ended]:
            if attempt in self._late:
                logger.error("the result of %s is not stored: its row is locked", attempt.name)
                self._free(attempt)
                continue
            logger.error("%s does not end", attempt.name)
            # It counts as a failure, so that no further thread follows at once. A late result of
            # the thread still replaces it.
            outcome = SendingOutcome(_ENDLESS, is_ours=attempt.is_mail)
            self._finish(attempt, replace(outcome, duration_ms=round(LEASE_SECONDS * 1000)))


class RowLocked(Exception):
    """A row was locked for longer than the transaction waits; nothing has changed."""


@contextmanager
def short_locks() -> Iterator[None]:
    """Runs a transaction of a duty that serves all organizations; raises :class:`RowLocked`.

    The rows of one of them may be locked for long, for instance while a webhook with very many
    deliveries is deleted.
    """
    try:
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
            yield
    except OperationalError as exc:
        if not isinstance(exc.__cause__, LockNotAvailable):
            raise
        raise RowLocked from None


class Source(ABC):
    """Finds due messages and stores their results; ``duty`` names the duty that runs it."""

    duty: ClassVar[str]

    @abstractmethod
    def begin_run(self) -> None:
        """Does what a run begins with."""

    @abstractmethod
    def begin_due(self, attempts: DeliveryAttempts) -> bool:
        """Begins due attempts as far as there are places.

        Returns whether there is more to do at once, before any attempt has ended.
        """

    def run(self) -> int:
        """Sends what is due until nothing is and nothing runs, or for a minute.

        It waits for what it has begun, while the lease of the duty is held: another process would
        send the same again. Returns what the source counts.
        """
        self.begin_run()
        until = time.monotonic() + RUN_SECONDS
        attempts = DeliveryAttempts()
        done = 0
        while True:
            has_more = time.monotonic() < until and self.begin_due(attempts)
            if not has_more and not attempts:
                return done
            done += attempts.collect(0.0 if has_more else _LOOK_SECONDS)


def sources() -> list[Source]:
    """Returns the sources that the apps declare."""
    return [import_string(path) for app in declaring_apps() for path in app.outbound]
