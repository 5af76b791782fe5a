"""A transaction that does not wait for a row that somebody else has locked for long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from django.db import OperationalError, connection, transaction
from psycopg.errors import LockNotAvailable

_LOCK_MS: Final = 100


class RowLocked(Exception):
    """A row was locked for longer than the transaction waits; nothing has changed."""


@contextmanager
def short_locks() -> Iterator[None]:
    """Runs a transaction of the duty, which serves all organizations.

    The rows of one of them may be locked for long, for instance while a webhook with very many
    deliveries is deleted. Raises :class:`RowLocked`.
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
