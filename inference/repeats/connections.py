"""A connection of the data plane that concurrent requests share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from config.api.errors import Unavailable
from config.server.batching.batcher import Batcher
from config.server.batching.waits import Blocked
from config.sql import Statement
from inference.store import DataPlaneConnection


class SharedConnection:
    """Runs statements one after another, each in a transaction of its own.

    A caller who leaves while its statement runs does not interrupt it. When PostgreSQL is away, the
    statements that have waited for the one that found it so fail with it: nobody waits for the
    time limits of others.
    """

    def __init__(self) -> None:
        self._connection = DataPlaneConnection()
        self._statements: Batcher[tuple[Statement, Sequence[Any]], list[Sequence[Any]]] = Batcher(
            self._run
        )

    async def close(self) -> None:
        """Closes the connection when the statements that wait have run."""
        await self._statements.drain()
        await self._connection.close()

    def execute(
        self, statement: Statement, values: Sequence[Any]
    ) -> asyncio.Future[list[Sequence[Any]]]:
        """Queues a statement and returns the future of its rows."""
        return self._statements.submit((statement, values))

    async def _run(
        self, batch: list[tuple[Statement, Sequence[Any]]]
    ) -> list[list[Sequence[Any]] | BaseException]:
        results: list[list[Sequence[Any]] | BaseException] = []
        for statement, values in batch:
            try:
                results.append(await self._connection.execute(statement, values))
            except Exception as exc:
                results.append(exc)
                if isinstance(exc, Unavailable) and not isinstance(exc, Blocked):
                    break
        return results + results[-1:] * (len(batch) - len(results))
