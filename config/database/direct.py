"""Connections to PostgreSQL itself, with prepared statements and settings of the session.

They use asyncpg, because psycopg spends five times as much of the event loop's time on a statement.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import asyncpg

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
from config.sql import Statement

# The options of libpq that asyncpg reads from a URL too. The other options of libpq only tune the
# connection, and are ignored.
_URL_OPTIONS: Final[tuple[str, ...]] = (
    "passfile", "service", "options", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl",
    "sslpassword", "ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs",
)  # fmt: skip

# The server's timeout is shorter than ours, so that a statement that we gave up does not run later.
_OPTIONS: Final = " ".join(
    f"-c {name}={value}"
    for name, value in {**PLANNING, "statement_timeout": "4500", "lock_timeout": LOCK_MS}.items()
)
# What PgBouncer answers to options that it cannot pass on.
_REFUSED_OPTIONS: Final = "unsupported startup parameter"

# Another transaction holds a lock. The statement changed nothing, and the connection is usable.
_LOCKED: Final = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
)

# PostgreSQL is unreachable or not ready, or it cancelled the statement for another one.
_AWAY: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidTransactionStateError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.PostgresSystemError,
    asyncpg.TransactionRollbackError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)

# What asyncpg raises beside ``OSError`` where a connection is not to be had: PostgreSQL refuses it,
# no server is of the kind that ``target_session_attrs`` wants, or asyncpg does not understand it.
_REFUSED: Final = (
    asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, ValueError
)  # fmt: skip


class PoolerFound(Exception):
    """The server at the other end is a pooler."""


class DirectConnection:
    """A connection whose session belongs to it alone."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._lock_ms = LOCK_MS

    @classmethod
    async def open(cls, given: Mapping[str, Any]) -> DirectConnection:
        """Connects with parameters of libpq; raises :class:`PoolerFound` or :class:`OSError`."""
        options = f"{given.get('options', '')} {_OPTIONS}".strip()
        named = {**given, "options": options}
        url = urlencode({name: named[name] for name in _URL_OPTIONS if name in named})
        ports = [int(port) for port in str(given.get("port") or "").split(",") if port]
        try:
            connection = await asyncpg.connect(
                f"postgresql://?{url}",
                host=given["host"].split(",") if given.get("host") else None,
                port=ports or None,
                user=given.get("user"),
                password=given.get("password"),
                database=given.get("dbname"),
                timeout=CONNECT_SECONDS,
                server_settings={"application_name": APPLICATION_NAME},
            )
        except _REFUSED as exc:
            if _REFUSED_OPTIONS in str(exc):
                raise PoolerFound from None
            raise OSError(str(exc)) from exc
        await _refuse_pooler(connection)
        return cls(connection)

    async def fetch(
        self, statement: Statement, parameters: Sequence[Any], lock_ms: int | None
    ) -> list[Sequence[Any]]:
        try:
            async with asyncio.timeout(STATEMENT_SECONDS):
                if lock_ms is not None and lock_ms != self._lock_ms:
                    await self._connection.execute(f"SET lock_timeout = {lock_ms}")
                    self._lock_ms = lock_ms
                return await self._connection.fetch(statement.text, *parameters)
        except _LOCKED as exc:
            raise Locked(exc.context) from None
        except asyncpg.QueryCanceledError as exc:
            raise Canceled(str(exc)) from exc
        except _AWAY as exc:
            raise Away(str(exc)) from exc
        except asyncpg.PostgresError as exc:
            raise Rejected(str(exc)) from exc

    async def listen(
        self, channel: str, hear: Callable[..., None], notice_loss: Callable[[], None]
    ) -> None:
        self._connection.add_termination_listener(lambda _: notice_loss())
        try:
            await self._connection.add_listener(channel, hear)
        except (*_AWAY, asyncpg.PostgresError) as exc:
            raise OSError(str(exc)) from exc

    def terminate(self) -> None:
        self._connection.terminate()


async def _refuse_pooler(connection: asyncpg.Connection) -> None:
    """Raises :class:`PoolerFound` unless the process at the other end is the one that answers.

    A pooler invents the process id that it gives to its clients. The command tag counts the rows: a
    query with a result would be two messages, and a pooler may send them to two connections.
    """
    pid = connection.get_server_pid()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            tag = await connection.execute(f"SELECT WHERE pg_backend_pid() = {pid}")
    except _REFUSED as exc:
        connection.terminate()
        raise OSError(str(exc)) from exc
    except BaseException:
        connection.terminate()
        raise
    if tag != "SELECT 1":
        connection.terminate()
        raise PoolerFound
