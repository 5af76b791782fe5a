"""The connection that repeats share: one failure of PostgreSQL is not waited for twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from config.api.errors import Unavailable
from config.database.driver import Rejected
from config.server.batching.waits import Blocked
from inference.repeats.answers import READ
from inference.repeats.connections import SharedConnection
from inference.store import DataPlaneConnection


@pytest.mark.parametrize(
    ("error", "calls"), [(Unavailable(), 1), (Blocked(), 3), (Rejected("no"), 3)]
)
def test_statements_that_wait_fail_with_the_one_that_finds_no_database(
    monkeypatch: pytest.MonkeyPatch, error: Exception, calls: int
) -> None:
    made: list[Sequence[Any]] = []

    async def execute(self: DataPlaneConnection, query: Any, parameters: Sequence[Any]) -> Any:
        made.append(parameters)
        if parameters == (0,):
            raise error
        return [parameters]

    async def run() -> list[Any]:
        shared = SharedConnection()
        waiting = [shared.execute(READ, (number,)) for number in range(3)]
        return await asyncio.gather(*waiting, return_exceptions=True)

    monkeypatch.setattr(DataPlaneConnection, "execute", execute)
    results = asyncio.run(run())
    assert len(made) == calls
    assert results == ([error] * 3 if calls == 1 else [error, [(1,)], [(2,)]])
