"""Open transactions: reports those that slow every request, in the log and in the metrics.

PostgreSQL keeps each version of a row that is newer than the oldest open transaction, in every
table, also of rows that the transaction never touches. Every request changes the same few rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from django.db import DatabaseError, connection
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from config.sql import execute, load_statement

logger = logging.getLogger(__name__)

FIND: Final = load_statement("billing", "find_open_transactions")
FIND_LOCK_WAITS: Final = load_statement("billing", "find_lock_waits")

# Transactions of requests take milliseconds, and those of imports seconds.
LONG_SECONDS: Final = 5.0
# A transaction that stays open is logged again after this time.
_LOG_SECONDS: Final = 60.0


class OpenTransaction(NamedTuple):
    """A transaction that keeps old versions of rows; its fields are the statement's columns."""

    pid: int
    application: str
    user: str
    state: str
    seconds: float


class OpenTransactions:
    """Logs long transactions, each when it is first seen and then once a minute."""

    def __init__(self) -> None:
        self._logged: dict[int, float] = {}

    def report(self) -> int:
        """Logs the transactions that have been open for long; returns how many it logged."""
        now = time.monotonic()
        found = find_open_transactions(LONG_SECONDS)
        still = {each.pid for each in found}
        self._logged = {pid: at for pid, at in self._logged.items() if pid in still}
        logged = 0
        for each in found:
            if now < self._logged.get(each.pid, -_LOG_SECONDS) + _LOG_SECONDS:
                continue
            self._logged[each.pid] = now
            logged += 1
            logger.warning(
                "a transaction slows every request: %s of %s, pid %d, %s, open for %d s; "
                "SELECT pg_terminate_backend(%d) ends it",
                each.application or "a program without a name",
                each.user or "an unknown user",
                each.pid,
                each.state,
                each.seconds,
                each.pid,
            )
        return logged


open_transactions: Final = OpenTransactions()


class OpenTransactionCollector(Collector):
    """Collects the age of the oldest transaction that keeps old versions of rows, and lock waits.

    Collects nothing while the database is unreachable, so that other metrics are still served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            found = find_open_transactions(0)
            waiting, seconds = measure_lock_waits()
        except DatabaseError:
            return
        yield GaugeMetricFamily(
            "causeway_oldest_transaction_seconds",
            "The age of the oldest open transaction that keeps old versions of rows.",
            value=max((each.seconds for each in found), default=0.0),
        )
        yield GaugeMetricFamily(
            "causeway_lock_waits", "Sessions of the database that wait for a lock.", value=waiting
        )
        yield GaugeMetricFamily(
            "causeway_longest_lock_wait_seconds",
            "For how long the statement of one of these sessions has run.",
            value=seconds,
        )


def find_open_transactions(seconds: float) -> list[OpenTransaction]:
    """Returns the transactions that have been open for longer than this, the oldest first."""
    with connection.cursor() as cursor:
        execute(cursor, FIND, [seconds])
        return [OpenTransaction(*row) for row in cursor.fetchall()]


def measure_lock_waits() -> tuple[int, float]:
    """Returns how many sessions wait for a lock, and the age of their oldest statement."""
    with connection.cursor() as cursor:
        execute(cursor, FIND_LOCK_WAITS)
        waiting, seconds = cursor.fetchone()
        return waiting, seconds
