"""Leases: which process does a scheduled duty, and when the duty is due again."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from django.contrib.postgres.functions import TransactionNow
from django.db import connection, models

logger = logging.getLogger("causeway.work")

# A holder that has renewed nothing for this long is dead, and another process may take over.
LEASE_SECONDS: Final = 30
# Concurrent statements differ in their ``now()`` by the time that they run.
_SLACK_SECONDS: Final = 5

# A duty that is due later than after its own interval is due now: its time was written by a clock
# that was wrong. In the same way, a renewal in the future renews nothing. What a dead holder left
# is due at once, but not after a failure: the duty itself may kill its holders, and would kill all.
# A row that somebody else has locked is left alone, so that no lock stops the other duties.
_TAKE: Final = """
WITH made AS (
    INSERT INTO config_lease (name, until, holder, renewed_at, every_seconds)
    VALUES (
        %(name)s, now() + make_interval(secs => %(every)s),
        CASE WHEN %(waits)s THEN '' ELSE %(holder)s END, now(), %(every)s
    )
    ON CONFLICT DO NOTHING
    RETURNING holder
),
due AS (
    SELECT name, holder FROM config_lease
    WHERE name = %(name)s
        AND (
            until <= now() OR until > now() + make_interval(secs => %(every)s + %(slack)s)
            OR (holder <> '' AND failures = 0)
        )
        AND (
            holder = '' OR renewed_at IS NULL OR NOT renewed_at BETWEEN
            now() - make_interval(secs => %(lease)s) AND now() + make_interval(secs => %(slack)s)
        )
    FOR NO KEY UPDATE SKIP LOCKED
),
taken AS (
    UPDATE config_lease AS l SET
        until = now() + make_interval(secs => %(every)s), holder = %(holder)s, renewed_at = now(),
        every_seconds = %(every)s,
        failures = l.failures + CASE WHEN due.holder = '' THEN 0 ELSE 1 END
    FROM due
    WHERE l.name = due.name
    RETURNING due.holder
)
SELECT '' FROM made WHERE holder <> '' UNION ALL SELECT holder FROM taken
"""
_RENEW: Final = """
WITH held AS (
    SELECT name FROM config_lease
    WHERE name = any(%(names)s) AND holder = %(holder)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE config_lease AS l SET renewed_at = now() FROM held WHERE l.name = held.name
"""
_RELEASE: Final = """
WITH held AS (
    SELECT name FROM config_lease
    WHERE name = %(name)s AND holder = %(holder)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE config_lease AS l SET
    holder = '',
    until = CASE WHEN %(interrupted)s THEN now() ELSE l.until END,
    succeeded_at = CASE WHEN %(succeeded)s THEN now() ELSE l.succeeded_at END,
    failures = CASE
        WHEN %(succeeded)s THEN 0 WHEN %(interrupted)s THEN l.failures ELSE l.failures + 1
    END
FROM held
WHERE l.name = held.name
"""


@cache
def process_name() -> str:
    """Returns the name of this process for people: its host and pid, and what makes it unique.

    Containers may share a host's name and have the same pid.
    """
    return f"{socket.gethostname()[:100]}:{os.getpid()}:{secrets.token_hex(4)}"


class Interrupted(Exception):
    """A duty was ended from outside before it was done: it did not fail, and is due again."""


class LeaseManager(models.Manager["Lease"]):
    """The leases, and those of them that this process holds."""

    def __init__(self) -> None:
        super().__init__()
        self._held: Counter[str] = Counter()
        # Held while a renewal runs.
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, name: str, *, every_seconds: float, waits_first: bool = False) -> Iterator[bool]:
        """Holds the lease of a duty during the block, if the duty is due and nobody holds it.

        The value is whether it does; only one of several concurrent calls gets True. The duty is
        due again ``every_seconds`` after it was taken; one that ``waits_first`` is due the first
        time so long after this installation first asked. A process that dies keeps the lease for 30
        seconds, and counts as a failure; one that lives calls :meth:`renew`. The lease records
        whether the block raised; after :class:`Interrupted` the duty is due at once.
        """
        if not self._take(name, every_seconds, waits_first=waits_first):
            yield False
            return
        self._count(name, 1)
        succeeded = interrupted = False
        try:
            yield True
            succeeded = True
        except Interrupted:
            interrupted = True
            raise
        finally:
            self._count(name, -1)
            values: dict[str, Any] = {
                "name": name,
                "holder": process_name(),
                "succeeded": succeeded,
                "interrupted": interrupted,
            }
            with connection.cursor() as cursor:
                cursor.execute(_RELEASE, values)

    def renew(self) -> None:
        """Renews the leases that this process holds; the heartbeat of ``work`` calls it."""
        with connection.cursor() as cursor, self._lock:
            if names := [name for name, count in self._held.items() if count > 0]:
                cursor.execute(_RENEW, {"names": names, "holder": process_name()})

    def note_result(self, name: str, result: int) -> None:
        """Stores what a duty has found, for the metrics."""
        self.filter(name=name).update(result=result)

    def note_progress(self, name: str) -> None:
        """Stores that a part of a long duty is done, so that it is not thought to hang."""
        self.filter(name=name).update(succeeded_at=TransactionNow())

    def _count(self, name: str, change: int) -> None:
        """Counts a lease as held or as released, after the renewal that may run.

        A release would skip the row while a renewal has locked it, and nobody would end the lease.
        """
        with self._lock:
            self._held[name] += change

    def _take(self, name: str, every_seconds: float, *, waits_first: bool) -> bool:
        values: dict[str, Any] = {
            "name": name,
            "waits": waits_first,
            "every": every_seconds,
            "holder": process_name(),
            "lease": LEASE_SECONDS,
            "slack": _SLACK_SECONDS,
        }
        with connection.cursor() as cursor:
            cursor.execute(_TAKE, values)
            taken = cursor.fetchone()
        if taken is None:
            return False
        if taken[0]:
            logger.warning("%s: taken over from %s, which has stopped renewing it", name, taken[0])
        return True


class Lease(models.Model):
    """The exclusive right of one process to do a scheduled duty.

    All times are the database's. ``until`` is when the duty is due again. ``holder`` does it now;
    it is empty between two runs. ``succeeded_at`` is the end of the last run that succeeded,
    or of a part of a long one, at first the time at which the row was made; ``failures`` is the
    number of runs since the last success that failed. ``result`` is what the last run has found, if
    the duty looks for something.
    """

    name = models.CharField(primary_key=True, max_length=64)
    until = models.DateTimeField()
    holder = models.CharField(max_length=128, default="", db_default="")
    renewed_at = models.DateTimeField(null=True)
    every_seconds = models.FloatField(null=True)
    succeeded_at = models.DateTimeField(db_default=TransactionNow())
    failures = models.IntegerField(default=0, db_default=0)
    result = models.BigIntegerField(null=True)

    objects = LeaseManager()

    def __str__(self) -> str:
        return self.name
