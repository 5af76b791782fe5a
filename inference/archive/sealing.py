"""Keeps the rows of partitions as they are while they are archived.

A check that no row can pass, and that stored rows need not pass, refuses every insertion and
update. It is set in an instant, and everybody can go on reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from django.db import OperationalError, connection, transaction
from psycopg import sql
from psycopg.errors import DeadlockDetected, LockNotAvailable

from billing.ledger import SEAL
from config.partitions.tables import TableLocked
from config.sql import fetch_rows
from inference.archive.ranges import TablePartition

_LOCK_MS: Final = 100
_PAUSE_SECONDS: Final = 0.5
_TRIES: Final = 60

_SEALED: Final = """
SELECT c.conrelid::regclass::text FROM pg_constraint AS c WHERE c.contype = 'c' AND c.conname = %s
"""


def seal(parts: Iterable[TablePartition]) -> None:
    """Refuses every change of the rows of partitions; raises :class:`TableLocked`."""
    sealed = list_sealed()
    for part in parts:
        name = part.partition.name
        if name not in sealed:
            change = sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} CHECK (FALSE) NOT VALID")
            _alter(name, change.format(sql.Identifier(name), sql.Identifier(SEAL)))


def unseal(names: Iterable[str]) -> None:
    """Allows changes again; a partition that has left meanwhile is passed over."""
    for name in sorted(list_sealed().intersection(names)):
        change = sql.SQL("ALTER TABLE IF EXISTS {} DROP CONSTRAINT IF EXISTS {}")
        _alter(name, change.format(sql.Identifier(name), sql.Identifier(SEAL)))


def list_sealed() -> set[str]:
    """Returns the names of the sealed partitions of all tables."""
    return {name for [name] in fetch_rows(_SEALED, [SEAL])}


def are_sealed(names: Collection[str]) -> bool:
    return set(names) <= list_sealed()


def run_when_free(table: str, run: Callable[[], None]) -> None:
    """Runs statements that lock a table, as often as others hold it; raises :class:`TableLocked`.

    Statements of the data plane wait for at most 200 ms. Whoever waits longer for an exclusive lock
    fails them.
    """
    for _ in range(_TRIES):
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
                run()
                cursor.execute("SET LOCAL lock_timeout = 0")
        except OperationalError as exc:
            if not isinstance(exc.__cause__, LockNotAvailable | DeadlockDetected):
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
    raise TableLocked(f"{table} is locked by another transaction; work tries again")


def _alter(table: str, change: sql.Composed) -> None:
    def run() -> None:
        with connection.cursor() as cursor:
            cursor.execute(change)

    run_when_free(table, run)
