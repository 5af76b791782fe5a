"""Connections of requests to the control plane, which wait neither for a standby nor for a pooler.

No time limit of PostgreSQL ends the wait of a commit for its synchronous standby, and a pooler
without a server keeps a statement waiting for minutes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg
from django.db import OperationalError

# A request is answered within two seconds; what comes before and after takes the rest.
COMMIT_SECONDS: Final = 1.2
CHECK_SECONDS: Final = 0.9
# How long a statement may take to end once it was cancelled.
_CANCEL_SECONDS: Final = 0.3
_LOCKS: Final = re.compile("^(INSERT|UPDATE|DELETE)|FOR (NO KEY )?(UPDATE|SHARE)")


class CommitUnknown(psycopg.OperationalError):
    """What was sent to be stored may be stored, or may be lost with its server."""


class _Late(Exception):
    pass


class PatientConnection(psycopg.Connection[Any]):
    """A connection whose commits and checks have a time limit."""

    _seconds: float | None = None
    _is_canceled = False

    @contextmanager
    def limiting(self, seconds: float, *, commits: bool = True) -> Iterator[None]:
        """Cancels what runs longer; raises :class:`CommitUnknown` if it may be stored."""
        self._seconds, self._is_canceled = seconds, False
        try:
            yield
        except (psycopg.OperationalError, OperationalError) as exc:
            # A connection that broke has no code, or that of a server that stops.
            state = getattr(exc.__cause__ or exc, "sqlstate", None) or "57P"
            if not self._is_canceled and not (commits and self.closed and state < "57Q"):
                raise
            if not commits:
                raise psycopg.OperationalError("the statement did not end in time") from None
            self._is_canceled = True
        finally:
            self._seconds = None
        if self._is_canceled and commits:
            # A commit that was waiting for its standby is done on this server, with a warning.
            raise CommitUnknown("the commit was not confirmed in time")

    def commit(self) -> None:
        with self.limiting(COMMIT_SECONDS):
            super().commit()

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        if query:
            return super().execute(query, *args, **options)
        # The pool looks whether the connection works.
        with self.limiting(CHECK_SECONDS):
            return super().execute(query, *args, **options)

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        if self._seconds is None:
            return super().wait(gen, *args, **options)
        with suppress(_Late):
            return super().wait(_bound(gen, self._seconds), *args, **options)
        self._is_canceled = True
        with suppress(psycopg.Error):
            self.cancel_safe(timeout=_CANCEL_SECONDS)
        with suppress(_Late):
            return super().wait(_bound(gen, _CANCEL_SECONDS), *args, **options)
        self.pgconn.finish()
        raise psycopg.OperationalError("the server does not answer")


def _bound(gen: Any, seconds: float) -> Any:
    """Passes the steps of a generator on, which psycopg resumes ten times a second at least."""
    until, step = time.monotonic() + seconds, None
    while True:
        try:
            wanted = gen.send(step)
        except StopIteration as end:
            return end.value
        step = yield wanted
        if time.monotonic() > until:
            raise _Late


def limit_write(
    execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Executes a statement of Django; one that waits for locks does so as long as for a commit.

    A commit that waits for its standby has its locks. Without a transaction a statement commits.
    """
    django = context["connection"]
    connection = django.connection
    if not isinstance(connection, PatientConnection) or not _LOCKS.search(sql):
        return execute(sql, params, many, context)
    limit = connection.limiting(COMMIT_SECONDS, commits=not django.in_atomic_block)
    with django.wrap_database_errors, limit:
        return execute(sql, params, many, context)
