"""The connections of statements about repeated requests, which organizations use in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from config.api.errors import Unavailable
from config.server.batching.lanes import Lane, Lanes
from config.server.batching.waits import Blocked, Suspects
from config.sql import Statement
from inference.store import DataPlaneConnection

Rows = list[Sequence[Any]]

# Statements of one batch, each of which waits for those before it: an answer may have megabytes.
_LIMIT: Final = 16
# How long a statement is tried again whose row is locked. Its caller waits meanwhile.
_PATIENCE_SECONDS: Final = 0.5
# How long statements fail at once after PostgreSQL was found away.
_AWAY_SECONDS: Final = 1.0


class _Call(NamedTuple):
    organization_id: UUID
    statement: Statement
    values: Sequence[Any]


class SharedConnections:
    """Runs statements of many organizations, each in a transaction of its own.

    An organization has one statement at a time, and none waits for the locked rows or for more than
    a few statements of another one. A caller who leaves while its statement waits or runs does not
    interrupt it. When PostgreSQL is away, the statements that follow within a second fail at once:
    nobody waits for the time limits of others.
    """

    def __init__(self, name: str, *, limit: int = _LIMIT) -> None:
        """``name`` is that of the queue in the metrics, ``limit`` the statements of one batch."""
        self._lanes: Lanes[_Call, Rows] = Lanes(
            name,
            self._open_lane,
            Suspects(),
            side=1,
            limit=limit,
            patience=_PATIENCE_SECONDS,
        )
        self._away_until = 0.0

    def show_figures(self) -> None:
        """Sets the gauge of the queue."""
        self._lanes.show_figures()

    async def close(self) -> None:
        """Closes the connections when the statements that wait have run."""
        await self._lanes.drain()
        await self._lanes.close()

    def execute(
        self, organization_id: UUID, statement: Statement, values: Sequence[Any]
    ) -> asyncio.Future[Rows]:
        """Queues a statement of an organization and returns the future of its rows."""
        return asyncio.shield(self.fetch(organization_id, statement, values))

    def fetch(
        self, organization_id: UUID, statement: Statement, values: Sequence[Any]
    ) -> asyncio.Future[Rows]:
        """Queues a statement that only reads; one whose caller has left before is never run."""
        call = _Call(organization_id, statement, values)
        return self._lanes.submit(organization_id, call).future

    def _open_lane(self, is_apart: bool) -> Lane[_Call, Rows]:
        connection = DataPlaneConnection(is_apart=is_apart)

        async def flush(
            calls: list[_Call], organizations: Collection[UUID]
        ) -> list[Rows | BaseException]:
            return await self._run(connection, calls)

        return Lane(flush, connection.close)

    async def _run(
        self, connection: DataPlaneConnection, calls: Sequence[_Call]
    ) -> list[Rows | BaseException]:
        results: list[Rows | BaseException] = []
        blocked: dict[UUID, Blocked] = {}
        now = asyncio.get_running_loop().time
        for organization_id, statement, values in calls:
            error: Exception | None = blocked.get(organization_id)
            if error is None and now() < self._away_until:
                error = Unavailable()
            if error is not None:
                results.append(error)
                continue
            try:
                results.append(await connection.execute(statement, values, [organization_id]))
            except Exception as exc:  # its caller raises it
                if isinstance(exc, Blocked):
                    blocked[organization_id] = exc
                elif isinstance(exc, Unavailable):
                    self._away_until = now() + _AWAY_SECONDS
                results.append(exc)
        return results
