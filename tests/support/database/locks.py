"""Locks that a session holds, those that sessions wait for, and work beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import QuerySet

from tests.support.machine.waiting import wait_until


@contextmanager
def locked(*rows: QuerySet[Any], strength: str = "UPDATE") -> Iterator[None]:
    """Holds the rows of these queries locked in a session of its own, and changes nothing.

    ``strength`` is PostgreSQL's word: a payment locks its accounts FOR NO KEY UPDATE, for instance.
    """
    session = connection.copy()
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            for query in rows:
                statement, parameters = query.query.sql_with_params()
                cursor.execute(f"{statement} FOR {strength}", parameters)
                assert cursor.fetchall(), "there is no such row"
        yield
    finally:
        release(session)


def release(session: BaseDatabaseWrapper) -> None:
    """Ends the session's transaction, and closes the session.

    Closing alone is not waited for by anybody: the server may hold the locks for a while.
    """
    with closing(session):
        session.rollback()


def waiting() -> int:
    """Returns the number of sessions of this database that wait for a row."""
    with connection.cursor() as cursor:
        # Within a transaction the view would stay as it was first seen.
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(cursor.fetchone()[0])


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Runs work in a thread with a connection of its own, and waits for its end, but not for ever.

    A pool would wait for a thread that never ends.
    """
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as exc:
            result.set_exception(exc)
        finally:
            connection.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield result
    result.result(30)
    thread.join(30)


def at_once(*works: Callable[[], Any], held: str) -> list[Any]:
    """Runs works in threads that all wait for locks, releases one, and returns their results.

    ``held`` is the statement that takes it. The works come to their locks in their order.
    """
    with ExitStack() as threads:
        session = connection.copy()
        try:
            session.set_autocommit(False)
            with session.cursor() as cursor:
                cursor.execute(held)
            results: list[Future[Any]] = []
            for work in works:
                results.append(threads.enter_context(beside(work)))
                wait_until(lambda: waiting() == len(results), "it does not wait for a lock")
        finally:
            release(session)
    return [result.result() for result in results]
