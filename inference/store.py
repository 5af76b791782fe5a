"""How the data plane runs its statements: asynchronously, without the ORM."""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from enum import Enum
from sys import getsizeof
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from asgiref.sync import sync_to_async
from django.db import DatabaseError, InterfaceError, connection

from config.api.errors import Unavailable
from config.clocks.clock import clock
from config.database.driver import LOCK_MS, Away, Canceled, DriverConnection, Locked, Rejected
from config.database.outages import is_away, outages
from config.database.pool import Pool, find_pool
from config.partitions.declarations import table_of
from config.server.batching.waits import STATEMENT_SECONDS, Blocked, waits
from config.sql import Statement, load_statement

Loaded = TypeVar("Loaded")

FIND_OWNER: Final = load_statement("inference", "find_owner")
WAIT_FOR_STANDBY: Final = load_statement("inference", "wait_for_standby")

# A statement of several organizations waits less for a lock than one of a single organization:
# while it does, it holds up all of them. It waits for some statements like itself to end, which use
# the same rows in other workers. The limit moves in steps, because setting it takes a round trip.
_STEP_MS: Final = 50
_STATEMENTS_TO_WAIT_FOR: Final = 5

# What a worker remembers of its commits. A failover loses seconds; more would be a database of its
# own in the memory of a process.
KEPT_SECONDS: Final = 60.0
KEPT_BYTES: Final = 8 * 1024 * 1024
_decode = msgspec.json.Decoder(list[dict[str, Any]]).decode

# Where PostgreSQL says which lock it was, in the context of the error.
_ROW: Final = re.compile(r"tuple \((\d+),(\d+)\)")
_RELATION: Final = re.compile(r'in relation "([^"]+)"|function "?(\w+)')


class DataPlaneConnection:
    """Runs statements one after another, each on a connection of the worker's pool.

    Each statement is a transaction. Not for concurrent use: each store has its own. ``is_apart``
    says that its statements are of organizations whose rows are locked (:class:`Pool`).
    """

    def __init__(self, *, is_apart: bool = False) -> None:
        self._is_apart = is_apart
        self._pool: Pool | None = None
        self._last: DriverConnection | None = None
        self._lock_ms = LOCK_MS
        # Whether a connection broke while a statement ran, and nothing has told since whether what
        # the statement may have stored is on the synchronous standby.
        self._is_doubtful = False
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
        running when the connection broke may or may not have committed. A later result tells that
        whatever had committed is on the synchronous standby too, if there is one. Raises
        :class:`Blocked` for a statement that changed nothing because a lock was held for too long,
        and :class:`Rejected` for one that changed nothing and would be rejected again. Reports long
        waits with the organizations of the statement.
        """
        pool = self._pool or self._join()
        is_new = False
        while True:
            try:
                driver, is_new = await pool.take(self._last, is_apart=self._is_apart, is_new=is_new)
            except Away as exc:
                outages.report(exc)
                raise Unavailable from None
            # Broken until shown otherwise: a statement that was cancelled may still be running.
            usable = None
            try:
                rows = await self._run(driver, query, parameters, organizations)
                if self._is_doubtful:
                    # The repetition found what the first try stored, so it had nothing to commit
                    # and waited for no standby.
                    await self._run(driver, WAIT_FOR_STANDBY, [], ())
                    self._is_doubtful = False
                usable = driver
                return rows
            except (Unavailable, Rejected):
                usable = driver
                raise
            except Away as exc:
                self._is_doubtful = True
                # An old connection may have died while it was idle, so a new one is tried once.
                if is_new:
                    outages.report(exc)
                    raise Unavailable from None
                is_new = True
            finally:
                self._last = usable
                if usable is None:
                    driver.terminate()
                pool.give_back(usable, is_apart=self._is_apart)

    async def _run(
        self,
        driver: DriverConnection,
        query: Statement,
        parameters: Sequence[Any],
        organizations: Collection[UUID],
    ) -> list[Sequence[Any]]:
        """Runs a statement on a connection; raises :class:`Away` if the connection broke."""
        is_shared = len(organizations) > 1
        if is_shared:
            self._lock_ms = find_lock_ms(self._usual)
        # What waits for no lock of an organization leaves the limit as it is.
        lock_ms = self._lock_ms if organizations else None
        started = time.perf_counter()
        try:
            rows = await driver.fetch(query, parameters, lock_ms)
        except Locked as exc:
            seconds = time.perf_counter() - started
            relation = find_relation(exc.context)
            owner = None
            if is_shared:
                owner = await _find_owner(driver, exc.context)
                organizations = organizations if owner is None else [owner]
            waits.report_timeout(query.name, organizations, seconds, relation)
            raise Blocked(owner) from None
        except Canceled as exc:
            seconds = time.perf_counter() - started
            STATEMENT_SECONDS.observe((query.name,), seconds)
            waits.report_slow(query.name, organizations, seconds)
            outages.report(exc)
            raise Unavailable from None
        seconds = time.perf_counter() - started
        if is_shared:
            self._usual += (seconds - self._usual) / 8
        STATEMENT_SECONDS.observe((query.name,), seconds)
        if seconds > waits.slow_seconds:
            waits.report_slow(query.name, organizations, seconds)
        return rows

    async def close(self) -> None:
        """Leaves the pool, until the next statement."""
        if self._pool is not None:
            self._pool.leave(self)
            self._pool = self._last = None

    def _join(self) -> Pool:
        self._pool = find_pool()
        self._pool.join(self)
        return self._pool


class Committed(Enum):
    """What a worker remembers: the rows of admissions, of moves to a candidate, of settlements."""

    ADMITTED = "admitted"
    MOVED = "moved"
    SETTLED = "settled"


class CommitMemory:
    """Remembers what a worker committed within a minute, 8 MiB of it at most."""

    def __init__(self) -> None:
        self._commits: deque[tuple[float, Committed, str]] = deque()
        # Remembers the rows of a statement, as JSON, and when it had committed. A request calls no
        # more than this: heartbeats forget.
        self.note = self._commits.append
        # While history is lost nothing is forgotten: all that comes are ends of running requests.
        self.is_kept = False

    @property
    def newest(self) -> datetime | None:
        """When the newest commit was made, by the database's clock."""
        if not self._commits:
            return None
        return datetime.fromtimestamp(clock.time() - time.monotonic() + self._commits[-1][0], UTC)

    def forget_old(self) -> None:
        """Forgets what is older than a minute, or too much."""
        size = sum(getsizeof(rows) for _, _, rows in self._commits)
        oldest = time.monotonic() - KEPT_SECONDS
        while not self.is_kept and (
            size > KEPT_BYTES or (self._commits and self._commits[0][0] < oldest)
        ):
            size -= getsizeof(self._commits.popleft()[2])

    def read(self, kind: Committed) -> dict[str, dict[str, Any]]:
        """Returns the remembered rows of a kind by the ids of their generations."""
        texts = [rows for _, its_kind, rows in self._commits if its_kind is kind]
        return {row["id"]: row for rows in texts for row in _decode(rows)}


async def _find_owner(driver: DriverConnection, context: str | None) -> UUID | None:
    """Returns the organization of the row that a statement did not get, if it can be found."""
    row = _ROW.search(context or "")
    if row is None:
        return None
    try:
        rows = await driver.fetch(
            FIND_OWNER, [_find_lock(context), (int(row[1]), int(row[2]))], None
        )
    except (Away, Locked, Canceled, Rejected):
        return None
    return rows[0][0] if rows else None


def find_lock_ms(usual: float) -> int:
    """Returns how long a statement of several organizations waits for a lock, in milliseconds.

    ``usual`` is how many seconds such statements take.
    """
    steps = math.ceil(usual * 1000 * _STATEMENTS_TO_WAIT_FOR / _STEP_MS)
    return min(max(steps, 1) * _STEP_MS, LOCK_MS)


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
    except (DatabaseError, InterfaceError) as exc:
        if not is_away(exc):
            raise
        outages.report(exc)
        raise Unavailable from None
