"""The data plane's own connections to PostgreSQL: asynchronous, prepared, without the ORM.

They use asyncpg, because psycopg spends five times as much of the event loop's time on a statement.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import asyncpg
from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connection

from config.api.errors import Unavailable
from config.partitions.declarations import table_of
from config.server.batching.waits import Blocked, waits
from config.sql import Statement, load_statement

Loaded = TypeVar("Loaded")

FIND_OWNER: Final = load_statement("inference", "find_owner")

# The options of libpq that asyncpg reads from a URL too. The other options of libpq only tune the
# connection, and are ignored.
_URL_OPTIONS: Final[tuple[str, ...]] = (
    "passfile", "service", "options", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl",
    "sslpassword", "ssl_min_protocol_version", "ssl_max_protocol_version", "target_session_attrs",
)  # fmt: skip

# The statements are few and always the same, so planning each execution costs more than running it.
# All of them find rows by key. A plan for small tables may prefer a scan, which is wrong as soon as
# the tables grow.
# The server's timeout is shorter than ours, so that a statement that we gave up does not run later.
# A lock is waited for only briefly, because the statement holds the locks of other organizations
# meanwhile. Our own statements hold theirs for a few milliseconds.
_LOCK_MS: Final = 200
_OPTIONS: Final = (
    "-c plan_cache_mode=force_generic_plan -c jit=off "
    "-c enable_seqscan=off -c enable_bitmapscan=off "
    f"-c statement_timeout=4500 -c lock_timeout={_LOCK_MS}"
)
# A statement of several organizations waits less: while it does, it holds up all of them. It waits
# for some statements like itself to end, which use the same rows in other workers. The limit moves
# in steps, because setting it takes a round trip.
_STEP_MS: Final = 50
_STATEMENTS_TO_WAIT_FOR: Final = 5
_STATEMENT_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 3.0

# Another transaction holds a lock. The statement changed nothing, and the connection is usable.
_BLOCKED: Final = (
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
)
# Where PostgreSQL says which lock it was, in the context of the error.
_ROW: Final = re.compile(r"tuple \((\d+),(\d+)\)")
_RELATION: Final = re.compile(r'in relation "([^"]+)"|function "?(\w+)')

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


class Rejected(Exception):
    """PostgreSQL rejected a statement, and would reject it again."""


class DataPlaneConnection:
    """A connection that opens when it is needed, and again after it broke.

    Each statement is a transaction. Not for concurrent use: each store has its own.
    """

    def __init__(self) -> None:
        self._connection: asyncpg.Connection | None = None
        self._lock_ms = _LOCK_MS
        # What statements of several organizations usually take, in seconds.
        self._usual = 0.0

    async def execute(
        self,
        query: Statement,
        parameters: Sequence[Any],
        organizations: Collection[UUID] = (),
    ) -> list[Sequence[Any]]:
        """Runs one statement and returns its rows, if it has any.

        Raises :class:`Unavailable` when the database cannot be reached; a statement that was
        running when the connection broke may or may not have committed. Raises :class:`Blocked`
        for a statement that changed nothing because a lock was held for too long, and
        :class:`Rejected` for one that changed nothing and would be rejected again. Reports long
        waits with the organizations of the statement.
        """
        for attempt in (1, 2):
            fresh = self._connection is None
            started = time.perf_counter()
            try:
                if self._connection is None:
                    self._connection = await connect()
                    self._lock_ms = _LOCK_MS
                    started = time.perf_counter()
                is_shared = len(organizations) > 1
                # A server that hangs does not enforce its own statement timeout.
                async with asyncio.timeout(_STATEMENT_SECONDS):
                    if is_shared and (lock_ms := find_lock_ms(self._usual)) != self._lock_ms:
                        await self._connection.execute(f"SET lock_timeout = {lock_ms}")
                        self._lock_ms = lock_ms
                    rows: list[Sequence[Any]] = await self._connection.fetch(
                        query.text, *parameters
                    )
                seconds = time.perf_counter() - started
                if is_shared:
                    self._usual += (seconds - self._usual) / 8
                waits.report_slow(query.name, organizations, seconds)
                return rows
            except _BLOCKED as exc:
                seconds = time.perf_counter() - started
                relation = find_relation(exc.context)
                owner = None
                if len(organizations) > 1:
                    owner = await self._find_owner(exc.context)
                    organizations = organizations if owner is None else [owner]
                waits.report_timeout(query.name, organizations, seconds, relation)
                raise Blocked(owner) from None
            except asyncpg.QueryCanceledError:
                waits.report_slow(query.name, organizations, time.perf_counter() - started)
                raise Unavailable from None
            except _AWAY:
                await self.close()
                # An old connection may have died while it was idle, so a new one is tried once.
                if fresh or attempt == 2:
                    raise Unavailable from None
            except asyncpg.PostgresError as exc:
                raise Rejected(str(exc)) from exc
            except asyncio.CancelledError:
                # The statement may still be running, so the connection cannot be used again.
                await self.close()
                raise
        raise AssertionError

    async def close(self) -> None:
        if self._connection is not None:
            broken, self._connection = self._connection, None
            broken.terminate()

    async def _find_owner(self, context: str | None) -> UUID | None:
        """Returns the organization of the row that a statement did not get, if it can be found."""
        row = _ROW.search(context or "")
        if row is None or self._connection is None:
            return None
        address = int(row[1]), int(row[2])
        try:
            async with asyncio.timeout(_STATEMENT_SECONDS):
                found: UUID | None = await self._connection.fetchval(
                    FIND_OWNER.text, _find_lock(context), address
                )
                return found
        except (asyncpg.PostgresError, *_AWAY):
            return None
        except asyncio.CancelledError:
            await self.close()
            raise


def find_lock_ms(usual: float) -> int:
    """Returns how long a statement of several organizations waits for a lock, in milliseconds.

    ``usual`` is how many seconds such statements take.
    """
    steps = math.ceil(usual * 1000 * _STATEMENTS_TO_WAIT_FOR / _STEP_MS)
    return min(max(steps, 1) * _STEP_MS, _LOCK_MS)


def find_relation(context: str | None) -> str:
    """Returns the table, or the function, whose lock a statement did not get.

    ``context`` is that of PostgreSQL's error. A partition is named by its table.
    """
    return table_of(_find_lock(context))


def _find_lock(context: str | None) -> str:
    """Returns the table or partition, or the function, that PostgreSQL's error names."""
    found = _RELATION.search(context or "")
    return "unknown" if found is None else found[1] or found[2]


async def run_in_thread(read: Callable[..., Loaded], *arguments: Any) -> Loaded:
    """Calls a function that reads through the ORM in a thread and returns its result.

    The thread's own connection is closed afterwards. Raises :class:`Unavailable` while the database
    cannot be reached.
    """

    def read_and_close() -> Loaded:
        try:
            return read(*arguments)
        finally:
            connection.close()

    try:
        return await sync_to_async(read_and_close, thread_sensitive=False)()
    except (OperationalError, InterfaceError):
        raise Unavailable from None


async def connect() -> asyncpg.Connection:
    """Connects with the parameters of the ORM's connection; raises one of ``_AWAY``."""
    given = connection.get_connection_params()
    given["options"] = f"{given.get('options', '')} {_OPTIONS}".strip()
    url = urlencode({name: given[name] for name in _URL_OPTIONS if name in given})
    ports = [int(port) for port in str(given.get("port") or "").split(",") if port]
    try:
        return await asyncpg.connect(
            f"postgresql://?{url}",
            host=given["host"].split(",") if given.get("host") else None,
            port=ports or None,
            user=given.get("user"),
            password=given.get("password"),
            database=given.get("dbname"),
            timeout=_CONNECT_SECONDS,
            server_settings={"application_name": "causeway-data-plane"},
        )
    except (asyncpg.PostgresError, ValueError) as exc:
        raise OSError(str(exc)) from exc
