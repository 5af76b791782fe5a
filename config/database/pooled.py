"""Connections through a pooler that shares its own by transaction, such as PgBouncer.

Nothing outlives a transaction: no prepared statement, no setting, no LISTEN. So each statement is a
function in the database (``functions``), which plans its statement once in each of the pooler's
connections, and one call of it is one message and one transaction. asyncpg sends two messages for
a statement that is not prepared, and a pooler may send them to two connections; libpq sends one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final

import psycopg
from psycopg import errors, generators, waiting
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.types.string import TextLoader

from config.database.driver import (
    APPLICATION_NAME,
    CONNECT_SECONDS,
    LOCK_MS,
    PLANNING,
    STATEMENT_SECONDS,
    Away,
    Canceled,
    Locked,
    Rejected,
)
from config.database.functions import find_call
from config.sql import Statement

logger = logging.getLogger(__name__)

_LOCKED: Final = (errors.LockNotAvailable, errors.DeadlockDetected, errors.SerializationFailure)
# The database has no function of this release, or one for other types of columns.
_NO_FUNCTION: Final = (errors.UndefinedFunction, errors.DatatypeMismatch)
# Classes of SQLSTATE that say nothing of the statement: the connection, the transaction, what the
# server has, an intervention, the system.
_AWAY_CLASSES: Final = frozenset(("08", "25", "40", "53", "55", "57", "58"))
_OK: Final = frozenset((ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK))
_VOID: Final = 2278
# What PgBouncer and libpq know of the parameters of Django's connection but a driver must not get.
_OF_DJANGO: Final = ("context", "cursor_factory", "prepare_threshold")
_BEGIN: Final = "; ".join(
    ["BEGIN", *(f"SET LOCAL {name} = {value}" for name, value in PLANNING.items())]
)
_warned: set[str] = set()


class NoPooler(Exception):
    """The server at the other end is PostgreSQL itself."""


class PooledConnection:
    """A connection to a pooler; libpq does the protocol, and the event loop waits for it."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        # Like asyncpg, which returns JSON as text.
        for name in ("json", "jsonb"):
            connection.adapters.register_loader(name, TextLoader)

    @classmethod
    async def open(cls, given: Mapping[str, Any]) -> PooledConnection:
        """Connects with parameters of libpq; raises :class:`NoPooler` or :class:`OSError`."""
        wanted = {name: value for name, value in given.items() if name not in _OF_DJANGO}
        wanted["application_name"] = APPLICATION_NAME
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                opened = cls(await psycopg.AsyncConnection.connect(**wanted, autocommit=True))
        except psycopg.Error as exc:
            raise OSError(str(exc)) from exc
        try:
            [[pid]] = await opened._run(b"SELECT pg_backend_pid()", [])
        except (psycopg.Error, Away) as exc:
            opened.terminate()
            raise OSError(str(exc)) from exc
        except BaseException:
            opened.terminate()
            raise
        if pid == opened._pgconn.backend_pid:
            opened.terminate()
            raise NoPooler
        return opened

    async def fetch(
        self, statement: Statement, parameters: Sequence[Any], lock_ms: int | None
    ) -> list[Sequence[Any]]:
        values = [encode(value) for value in parameters]
        limit = LOCK_MS if lock_ms is None else lock_ms
        try:
            try:
                return await self._run(find_call(statement), [*values, str(limit).encode()])
            except _NO_FUNCTION:
                _warn_of_functions(statement)
                return await self._run_text(statement, values, limit)
        except _LOCKED as exc:
            raise Locked(exc.diag.context) from None
        except errors.QueryCanceled as exc:
            raise Canceled(str(exc)) from exc
        except psycopg.Error as exc:
            state = exc.sqlstate
            if state is None or state[:2] in _AWAY_CLASSES:
                raise Away(str(exc)) from exc
            raise Rejected(str(exc)) from exc

    async def listen(
        self, channel: str, hear: Callable[..., None], notice_loss: Callable[[], None]
    ) -> None:
        """Raises :class:`TimeoutError`: a notification goes to whoever has the connection."""
        raise TimeoutError

    def terminate(self) -> None:
        """Closes the connection; cancels a statement that runs, which would otherwise go on."""
        pgconn = self._pgconn
        if pgconn.status != psycopg.pq.ConnStatus.OK:
            pgconn.finish()
            return
        if pgconn.transaction_status == TransactionStatus.ACTIVE:
            # It opens a connection and waits; nobody waits for it.
            cancel = pgconn.cancel_conn()
            threading.Thread(target=partial(_cancel, cancel), daemon=True).start()
        pgconn.finish()

    async def _run_text(
        self, statement: Statement, values: list[bytes | None], limit: int
    ) -> list[Sequence[Any]]:
        """Runs a statement that has no function: it is planned each time, in three messages."""
        begin = f"{_BEGIN}; SET LOCAL lock_timeout = {limit}"
        await self._run(begin.encode(), None)
        try:
            rows = await self._run(statement.text.encode(), values)
        except psycopg.Error:
            with suppress(psycopg.Error, Away):
                await self._run(b"ROLLBACK", None)
            raise
        await self._run(b"COMMIT", None)
        return rows

    async def _run(self, command: bytes, values: list[bytes | None] | None) -> list[Sequence[Any]]:
        """Sends a command, and returns the rows of its last result."""
        pgconn = self._pgconn
        try:
            async with asyncio.timeout(STATEMENT_SECONDS):
                if values is None:
                    pgconn.send_query(command)
                else:
                    pgconn.send_query_params(command, values)
                results = await self._receive()
        except OSError as exc:
            raise Away(str(exc)) from exc
        for result in results:
            if result.status not in _OK:
                raise psycopg.errors.error_from_result(result)
        last = results[-1]
        if last.nfields == 0 or last.ftype(0) == _VOID:
            return []
        transformer = Transformer(self._connection)
        transformer.set_pgresult(last)
        return transformer.load_rows(0, last.ntuples, tuple)

    async def _receive(self) -> list[psycopg.pq.abc.PGresult]:
        pgconn = self._pgconn
        while pgconn.flush():
            await self._wait(is_writing=True)
            pgconn.consume_input()
        results = []
        while True:
            while pgconn.is_busy():
                await self._wait()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            results.append(result)
        if not results:
            raise psycopg.OperationalError("the connection was closed")
        return results

    async def _wait(self, *, is_writing: bool = False) -> None:
        loop = asyncio.get_running_loop()
        socket = self._pgconn.socket
        ready: asyncio.Future[None] = loop.create_future()
        loop.add_reader(socket, _set_ready, ready)
        if is_writing:
            loop.add_writer(socket, _set_ready, ready)
        try:
            await ready
        finally:
            loop.remove_reader(socket)
            if is_writing:
                loop.remove_writer(socket)


def encode(value: Any) -> bytes | None:
    """Returns a parameter as text, whose type the statement decides; a tuple is an address."""
    return None if value is None else _render(value).encode()


def _render(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes | bytearray | memoryview):
        return f"\\x{bytes(value).hex()}"
    if isinstance(value, tuple):
        return f"({','.join(map(_render, value))})"
    if isinstance(value, Sequence | frozenset | set):
        return f"{{{','.join(map(_render_element, value))}}}"
    return str(value)


def _render_element(value: Any) -> str:
    if value is None:
        return "NULL"
    escaped = _render(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _cancel(cancel: Any) -> None:
    """Cancels in steps: libpq's blocking call stops all threads while a pooler does not answer."""
    with suppress(psycopg.Error):
        cancel.start()
        waiting.wait_conn(generators.cancel(cancel), 0.1, CONNECT_SECONDS)


def _warn_of_functions(statement: Statement) -> None:
    if statement.name not in _warned:
        _warned.add(statement.name)
        logger.warning(
            "the database has no function for the statement %s, which is therefore planned each "
            "time: run manage.py migrate of this release",
            statement.name,
        )
