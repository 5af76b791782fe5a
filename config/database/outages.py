"""Outages: why PostgreSQL runs no statements, named once in the log and counted in the metrics.

A fault of the database fails every request. Each reason has one line when it begins, one a minute
while it lasts, and one when it is over.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import Final

import psycopg
from django.db import InterfaceError, InternalError, OperationalError
from prometheus_client import Counter

logger = logging.getLogger(__name__)

_FAILURES: Final = Counter(
    "causeway_database_failures_total",
    "Statements that PostgreSQL did not run for a reason of its own, by reason.",
    ("reason",),
)
_REMIND_SECONDS: Final = 60.0
# Workers try every few seconds while nothing succeeds, so a reason that was not met for so long is
# over.
_QUIET_SECONDS: Final = 15.0
# What PostgreSQL's own code says, by its beginning.
_STATES: Final = {
    "25006": "read_only",
    "53100": "disk_full",
    "53200": "out_of_memory",
    "53300": "connections",
    "40": "lock",
    "55P03": "lock",
    "57014": "timeout",
    "57P": "stopped",
    "58": "input_output",
}
# A connection that was refused has no code, only words.
_WORDS: Final = (
    # PgBouncer's own.
    (re.compile("server_login_retry|query_wait_timeout|pgbouncer cannot connect"), "pooler"),
    (re.compile("was not confirmed in time"), "standby"),
    # The last one is PgBouncer's.
    (
        re.compile("too many (clients|connections)|connection slots|connection limit|no more conn"),
        "connections",
    ),
    (
        re.compile("the database system is|terminating connection|shutting down"),
        "stopped",
    ),
    (re.compile("closed|lost|server conn crashed"), "broken"),
    (
        re.compile("read-only transaction|session is read-only|hosts match the target attribute"),
        "read_only",
    ),
    (re.compile("No space left"), "disk_full"),
    (re.compile("could not (write|extend|create|sync|read) "), "input_output"),
    (re.compile("get a connection after|connections are busy"), "pool"),
)
_REMEDIES: Final = {
    "read_only": "It is a standby or a demoted primary: find the primary.",
    "disk_full": "Its disk is full: make room.",
    "out_of_memory": "It has no memory left.",
    "connections": "All its connections are taken: look who has them in pg_stat_activity, or in "
    "the pooler's SHOW CLIENTS.",
    "timeout": "Statements run into their time limit: look for slow ones in pg_stat_activity.",
    "lock": "Another transaction holds a lock: find it in pg_stat_activity.",
    "stopped": "It stops, starts or recovers, or somebody ended the connection: read its log.",
    "broken": "A connection to it ended: it stopped, or a proxy or a pooler in between did that.",
    "pooler": "PgBouncer has no server, or waits before it connects again: let server_login_retry "
    "be 1 in its configuration.",
    "standby": "A commit waits for the synchronous standby: look whether that runs.",
    "input_output": "It cannot read or write its files: read its log.",
    "pool": "None of this process's connections (DATABASE_POOL_SIZE, "
    "DATABASE_DATA_PLANE_CONNECTIONS) became free: look for another reason beside it.",
    "unreachable": "Look whether its host runs and can be reached, and whether DATABASE_URL is "
    "right.",
}


class _Outage:
    __slots__ = ("began_at", "failures", "last_at", "logged_at")

    def __init__(self, now: float) -> None:
        self.began_at = self.last_at = now
        self.logged_at = -_REMIND_SECONDS
        self.failures = 0


class Outages:
    """The reasons for which statements of this process fail; any thread may report one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._present: dict[str, _Outage] = {}
        # Whether the connection that was wanted or used last got no answer.
        self.is_silent = False

    def report(self, problem: BaseException) -> None:
        """Counts a statement that failed for a reason of the database, and logs a new reason."""
        reason = find_reason(problem)
        _FAILURES.labels(reason).inc()
        now = time.monotonic()
        with self._lock:
            outage = self._present.setdefault(reason, _Outage(now))
            outage.failures += 1
            outage.last_at = now
            is_due = now >= outage.logged_at + _REMIND_SECONDS
            if is_due:
                outage.logged_at = now
        if is_due:
            logger.error(
                "the database takes no statements (%s, %d failed): %s. %s Requests get 503 until "
                "it does: see docs/runbooks.md",
                reason,
                outage.failures,
                _describe(problem),
                _REMEDIES[reason],
            )

    def end_old(self) -> None:
        """Logs the end of each reason that was not met for some seconds; call it regularly."""
        if not self._present:
            return
        now = time.monotonic()
        with self._lock:
            over = {
                reason: outage
                for reason, outage in self._present.items()
                if now > outage.last_at + _QUIET_SECONDS
            }
            for reason in over:
                del self._present[reason]
        for reason, outage in over.items():
            logger.warning(
                "the database takes statements again (%s): %d failed in %d s",
                reason,
                outage.failures,
                outage.last_at - outage.began_at,
            )


outages: Final = Outages()


class PoolFilter(logging.Filter):
    """Drops the pool's lines for each connection that it cannot open, and reports the error.

    Drops those about connections that have ended, too: the statement that had one says why.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("reconnection attempt in pool"):
            # The errors of its attempts are reported.
            return False
        for argument in record.args if isinstance(record.args, tuple) else ():
            if isinstance(argument, psycopg.Connection) and argument.closed:
                return False
            if isinstance(argument, OperationalError | psycopg.OperationalError):
                outages.report(argument)
                return False
        return True


def is_away(problem: BaseException | None) -> bool:
    """Returns whether the ORM raised an error because no database takes its statements."""
    if isinstance(problem, InternalError):
        # Most of these are defects of ours; the one for a read-only server is not.
        return find_reason(problem) == "read_only"
    return isinstance(problem, OperationalError | InterfaceError)


def find_reason(problem: BaseException) -> str:
    """Returns the label of a failure, from PostgreSQL's code or from its words."""
    for error in _unwrap(problem):
        state = getattr(error, "sqlstate", None) or ""
        for beginning, reason in _STATES.items():
            if state.startswith(beginning):
                return reason
    for error in _unwrap(problem):
        for words, reason in _WORDS:
            if words.search(str(error)):
                return reason
    return "unreachable"


def explain(problem: BaseException) -> str:
    """Returns for a person why no statement ran, in the driver's words, and what to do."""
    remedy = _REMEDIES[find_reason(problem)]
    return f"The database cannot be used: {_describe(problem)}. {remedy}"


def _unwrap(problem: BaseException) -> Iterator[BaseException]:
    """Yields an error and those that it was made of: the driver's is below Django's."""
    error: BaseException | None = problem
    while error is not None:
        yield error
        error = error.__cause__


def _describe(problem: BaseException) -> str:
    """Returns the first line of the driver's words, or the name of an error without words."""
    words = next((text for error in _unwrap(problem) if (text := str(error).strip())), "")
    return words.splitlines()[0].rstrip(".") if words else type(problem).__name__
