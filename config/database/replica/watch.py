"""Finds out whether the replica may be read: how far it is behind, and whether it answers at all.

Nobody waits for a check. A thread asks both servers each second while somebody reads, and a reader
takes what it found last. What an earlier check found gets older, so a check that hangs ends the use
of the replica by itself; a check that fails ends the reads that wait for the replica.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, Error, connections
from prometheus_client import Gauge

logger = logging.getLogger(__name__)

# The alias of ``DATABASE_REPLICA_URL``.
ALIAS: Final = "replica"
_CHECK_SECONDS: Final = 1.0
# How long the replica may think about one of the checks, which read no table.
_ANSWER_SECONDS: Final = 1.0
# How long the checks go on after the last read.
_IDLE_SECONDS: Final = 60.0
_FIRST_CHECK_SECONDS: Final = 4.0

# A position is the number of bytes that were written to the log of changes.
_ASK_PRIMARY: Final = """
SELECT pg_current_wal_lsn() - '0/0'::pg_lsn, clock_timestamp(),
    (SELECT system_identifier FROM pg_control_system()), current_database()
"""
_ASK_REPLICA: Final = """
SELECT pg_is_in_recovery(), pg_last_wal_replay_lsn() - '0/0'::pg_lsn,
    pg_last_xact_replay_timestamp(),
    (SELECT system_identifier FROM pg_control_system()), current_database()
"""

_LAG: Final = Gauge(
    "causeway_replica_lag_seconds",
    "How far the replica was behind the primary when it was asked last.",
    multiprocess_mode="livemostrecent",
)

_SENTENCES: Final = {
    "promoted": "DATABASE_REPLICA_URL is a server that takes writes: was it promoted?",
    "other_database": "DATABASE_REPLICA_URL is no copy of DATABASE_URL",
    "down": "it does not answer",
}


@dataclass(frozen=True, slots=True)
class ReplicaFinding:
    """What a check found: a problem, or what was replayed and how old that was at ``asked_at``."""

    problem: str | None
    asked_at: float = 0.0
    position: int = 0
    lag: float = 0.0


_UNKNOWN: Final = ReplicaFinding("unknown")


class Watch:
    """Checks the replica of this process, in a thread that lives while it is read."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._wanted_at = 0.0
        self._finding = _UNKNOWN
        self._readers: set[socket.socket] = set()

    def find_problem(self, after: int = 0) -> str | None:
        """Returns why the replica must not be read now, as a word; ``None`` if it may.

        It must have replayed all that was committed until ``REPLICA_MAX_LAG`` ago, and the position
        ``after``. Never waits.
        """
        with self._changed:
            self._want()
            found = self._finding
        if found.problem is not None:
            return found.problem
        if time.monotonic() - found.asked_at + found.lag > settings.REPLICA_MAX_LAG:
            return "lag"
        return None if found.position >= after else "own_write"

    def find_position(self) -> int:
        """Returns what the replica had replayed when it was asked last.

        Whatever server has replayed as much is as fresh as the one that was asked.
        """
        with self._changed:
            return self._finding.position

    def wait_for_check(self) -> None:
        """Waits until the first check has ended, a few seconds at most."""
        with self._changed:
            self._want()
            self._changed.wait_for(lambda: self._finding != _UNKNOWN, _FIRST_CHECK_SECONDS)

    def give_up(self) -> None:
        """Ends the use of the replica, which has failed a reader, until a check succeeds."""
        with self._changed:
            if self._finding.problem is None:
                self._finding = ReplicaFinding("failed")

    @contextmanager
    def ending_with_replica(self, connection: psycopg.Connection[Any]) -> Iterator[None]:
        """Ends a connection, which waits for the replica, as soon as a check fails."""
        copy = socket.socket(fileno=os.dup(connection.fileno()))
        with self._changed:
            self._readers.add(copy)
        try:
            yield
        finally:
            with self._changed:
                self._readers.discard(copy)
                copy.close()

    def _want(self) -> None:
        self._wanted_at = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._finding = _UNKNOWN
            self._thread = threading.Thread(target=self._run, name="replica", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        replica: psycopg.Connection[Any] | None = None
        while True:
            with self._changed:
                if time.monotonic() > self._wanted_at + _IDLE_SECONDS:
                    self._thread = None
                    break
            found, replica = self._check(replica)
            self._note(found)
            time.sleep(min(_CHECK_SECONDS, settings.REPLICA_MAX_LAG / 4))
        if replica is not None:
            replica.close()

    def _check(
        self, replica: psycopg.Connection[Any] | None
    ) -> tuple[ReplicaFinding | None, psycopg.Connection[Any] | None]:
        """Asks both servers; ``None`` stands for a primary that does not tell.

        The primary is asked first, so that the replica is never taken for newer than it is.
        """
        asked_at = time.monotonic()
        try:
            position, now, *primary = _ask_primary()
        except Error as exc:
            logger.debug("the primary does not tell its position: %s", exc)
            return None, replica
        try:
            if replica is None or replica.broken:
                replica = psycopg.connect(
                    **connections[ALIAS].get_connection_params(), autocommit=True
                )
            is_standby, replayed, replayed_at, *of_replica = self._ask_replica(replica)
        except psycopg.Error as exc:
            logger.debug("the replica does not answer: %s", exc)
            if replica is not None:
                replica.close()
            return ReplicaFinding("down"), None
        if not is_standby:
            return ReplicaFinding("promoted"), replica
        if primary != of_replica:
            return ReplicaFinding("other_database"), replica
        lag = _measure(int(position), now, int(replayed or 0), replayed_at)
        return ReplicaFinding(None, asked_at, int(replayed or 0), lag), replica

    def _ask_replica(self, replica: psycopg.Connection[Any]) -> Any:
        # A server that hangs enforces no limit, and libpq waits for ever.
        copy = socket.socket(fileno=os.dup(replica.fileno()))
        limit = threading.Timer(_ANSWER_SECONDS, _shut_down, (copy,))
        limit.start()
        try:
            return replica.execute(_ASK_REPLICA).fetchone()
        finally:
            limit.cancel()
            limit.join()
            copy.close()

    def _note(self, found: ReplicaFinding | None) -> None:
        if found is None:
            return
        with self._changed:
            before, self._finding = self._finding.problem, found
            if found.problem is not None:
                for reader in self._readers:
                    _shut_down(reader)
            self._changed.notify_all()
        if found.problem is None:
            _LAG.set(found.lag)
        if found.problem == before:
            return
        if found.problem is not None:
            reason = _SENTENCES[found.problem]
            logger.warning("the replica is not read, the primary is: %s", reason)
        elif before != _UNKNOWN.problem:
            logger.info("the replica is read again")


def _measure(position: int, now: datetime, replayed: int, replayed_at: datetime | None) -> float:
    """Returns how many seconds the replica is behind; both times are of the primary's clock.

    The time of the commit that was replayed last says nothing while the primary is idle.
    """
    if replayed >= position:
        return 0.0
    if replayed_at is None:
        return float("inf")
    return max(0.0, (now - replayed_at).total_seconds())


def _ask_primary() -> Any:
    connection = connections[DEFAULT_DB_ALIAS]
    try:
        with connection.cursor() as cursor:
            cursor.execute(_ASK_PRIMARY)
            return cursor.fetchone()
    finally:
        connection.close()


def _shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


watch: Final = Watch()
