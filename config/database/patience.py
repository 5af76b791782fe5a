"""Connections of requests to the control plane, which wait neither for a standby nor for a pooler.

No time limit of PostgreSQL ends the wait of a commit for its synchronous standby, a server that
hangs ends nothing, and a pooler without a server keeps a statement waiting for minutes. A statement
may work for as long as it needs, while its server answers new connections, and so may all that the
transaction of a file does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import psycopg
from django.db import OperationalError
from django.db import connection as default_connection
from psycopg import waiting
from psycopg.conninfo import make_conninfo
from psycopg.errors import _WaitTimeout
from psycopg.pq import TransactionStatus
from psycopg.sql import Composable

from config.database.outages import find_reason, outages

# A request is answered within two seconds; what comes before and after takes the rest.
OPEN_SECONDS: Final = 1.5
COMMIT_SECONDS: Final = 1.2
CHECK_SECONDS: Final = 0.8
# How long a commit may take to end once it was cancelled.
_CANCEL_SECONDS: Final = 0.2
# A commit that waits for its standby has its locks. A pooler passes no options of a session on.
_LIMIT_LOCKS: Final = f"SET LOCAL lock_timeout = {COMMIT_SECONDS * 1000:.0f}".encode()
_WRITES: Final = re.compile(r"\s*(WITH\b.*)?\b(INSERT|UPDATE|DELETE)\b", re.DOTALL)


class CommitUnknown(psycopg.OperationalError):
    """The outcome of a commit is unknown, because its server did not confirm it."""


class PatientConnection(psycopg.Connection[Any]):
    """A connection whose commits, checks and waits for locks have a time limit."""

    # That of the transaction that runs; the one of a file has none.
    commit_seconds: float | None = COMMIT_SECONDS
    _seconds: float | None = None
    _is_canceled = False

    @contextmanager
    def limiting(self, seconds: float | None) -> Iterator[None]:
        """Cancels what runs longer; raises :class:`CommitUnknown` if it may be stored."""
        self._seconds, self._is_canceled = seconds, False
        try:
            yield
        except (psycopg.OperationalError, OperationalError):
            # An error of a server that goes on has changed nothing, and it may be our cancel.
            if not self.closed:
                raise
            self._is_canceled = True
        finally:
            self._seconds = None
        if self._is_canceled:
            # A commit that was waiting for its standby is done on this server, with a warning.
            raise CommitUnknown("the commit was not confirmed in time")

    def commit(self) -> None:
        with self.limiting(self.commit_seconds):
            super().commit()

    def _start_query(self) -> Any:
        was_idle = self.info.transaction_status is TransactionStatus.IDLE
        yield from super()._start_query()
        if was_idle and not self.autocommit:
            self.commit_seconds = COMMIT_SECONDS
            yield from self._exec_command(_LIMIT_LOCKS)

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        # An empty statement is the pool's check, which waits for one connection after the other.
        return super().execute(query, *args, **options) if query else None

    def answers(self, seconds: float = CHECK_SECONDS) -> bool:
        """Returns whether the server answers in time; ends a connection to one that does not."""
        try:
            with self.lock:
                super().wait(self._exec_command(b"SELECT"), timeout=seconds)
        except psycopg.OperationalError:
            self.pgconn.finish()
            return False
        return True

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        while True:
            with suppress(_WaitTimeout):
                return super().wait(gen, timeout=self._seconds or CHECK_SECONDS)
            if self._seconds is not None or not self._answers_others():
                break
        if self._seconds is not None:
            self._is_canceled = True
            with suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_SECONDS)
            with suppress(_WaitTimeout):
                return super().wait(gen, timeout=_CANCEL_SECONDS)
        self.pgconn.finish()
        outages.is_silent = True
        raise psycopg.OperationalError("the server does not answer")

    def _answers_others(self) -> bool:
        """Returns whether the server answers a new connection."""
        to_server = make_conninfo(self.info.dsn, password=self.info.password)
        try:
            opening = PatientConnection._connect_gen(to_server)
            # Without an interval it would poll without a pause.
            with closing(waiting.wait_conn(opening, 0.1, CHECK_SECONDS)) as other:
                return other.answers()
        except psycopg.OperationalError as exc:
            return find_reason(exc) == "connections"


def limit_write(
    execute: Callable[..., Any],
    sql: str | Composable,
    params: Any,
    many: bool,
    context: dict[str, Any],
) -> Any:
    """Executes a statement of Django; one that commits by itself waits no longer than a commit."""
    django = context["connection"]
    session = django.connection
    is_bound = isinstance(session, PatientConnection) and not django.in_atomic_block
    if not is_bound or not _WRITES.match(sql if isinstance(sql, str) else sql.as_string(session)):
        return execute(sql, params, many, context)
    with django.wrap_database_errors, session.limiting(COMMIT_SECONDS):
        return execute(sql, params, many, context)


def take_time() -> None:
    """Lets the transaction that runs, which applies a file, wait and commit without a limit."""
    session = default_connection.connection
    if isinstance(session, PatientConnection):
        session.execute("SET LOCAL lock_timeout = 0")
        session.commit_seconds = None
