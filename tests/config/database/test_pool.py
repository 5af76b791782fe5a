"""The data plane's connections: how many a worker opens, who gets them, and when they close."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from django.db import connection

from config.api.errors import Unavailable
from config.database import pool as pools
from config.database.driver import Away
from config.database.pool import Pool, find_pool
from config.sql import Statement
from inference.store import DataPlaneConnection

SLEEP = Statement("sleep", "SELECT pg_sleep(0.3)")
SLOW = Statement("sleep", "SELECT pg_sleep(1.5)")
LONG_SLEEP = Statement("sleep", "SELECT pg_sleep(4)")
PID = Statement("pid", "SELECT pg_backend_pid()")
pytestmark = pytest.mark.django_db(transaction=True)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type]


async def close(*stores: DataPlaneConnection) -> None:
    for store in stores:
        await store.close()


def test_many_statements_share_the_connections_of_the_setting(settings: Any) -> None:
    settings.DATABASE_DATA_PLANE_CONNECTIONS = 3

    async def test() -> None:
        stores = [DataPlaneConnection() for _ in range(9)]
        waiting = [asyncio.create_task(store.execute(SLEEP, [])) for store in stores]
        await asyncio.sleep(0)
        use = find_pool().use()
        assert (use.size, use.busy, use.waiting, use.waits) == (3, 3, 6, 6)
        await asyncio.gather(*waiting)
        use = find_pool().use()
        assert (use.open, use.busy, use.waiting) == (3, 0, 0)
        assert use.waited_seconds > 0
        await close(*stores)
        assert find_pool().use().open == 0

    run(test)


def test_statements_of_locked_rows_leave_two_connections_to_the_others(settings: Any) -> None:
    settings.DATABASE_DATA_PLANE_CONNECTIONS = 4

    async def test() -> None:
        apart = [DataPlaneConnection(is_apart=True) for _ in range(3)]
        slow = [asyncio.create_task(store.execute(LONG_SLEEP, [])) for store in apart]
        await asyncio.sleep(0)
        assert find_pool().use().busy == 2
        others = [DataPlaneConnection() for _ in range(2)]
        for store in others:
            assert await store.execute(PID, [])
        assert not any(task.done() for task in slow)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        await close(*apart, *others)

    run(test)


def test_a_statement_that_finds_no_free_connection_is_refused_and_leaves_no_trace(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DATABASE_DATA_PLANE_CONNECTIONS = 2
    monkeypatch.setattr(pools, "_WAIT_SECONDS", 0.05)

    async def test() -> None:
        stores = [DataPlaneConnection() for _ in range(3)]
        slow = [asyncio.create_task(store.execute(SLEEP, [])) for store in stores[:2]]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await stores[2].execute(PID, [])
        await asyncio.gather(*slow)
        assert await stores[2].execute(PID, [])
        use = find_pool().use()
        assert (use.busy, use.waiting) == (0, 0)
        await close(*stores)

    run(test)
    # Nobody looks for slow statements where none has ended.
    assert "look for slow statements" not in caplog.text


def test_slow_statements_are_looked_for_where_others_end(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DATABASE_DATA_PLANE_CONNECTIONS = 3

    async def test() -> None:
        slow, late = DataPlaneConnection(is_apart=True), DataPlaneConnection(is_apart=True)
        quick = DataPlaneConnection()
        asleep = asyncio.create_task(slow.execute(SLOW, []))
        await asyncio.sleep(0)
        # It waits until another one has ended.
        monkeypatch.setattr(pools, "_WAIT_SECONDS", 1.0)
        refused = asyncio.create_task(late.execute(PID, []))
        await asyncio.sleep(0)
        assert await quick.execute(PID, [])
        with pytest.raises(Unavailable):
            await refused
        await asleep
        await close(slow, late, quick)

    run(test)
    assert "look for slow statements" in caplog.text


def test_a_waiter_that_leaves_gives_its_turn_away() -> None:
    async def test() -> None:
        pool = Pool(1)
        pool.join(test)
        held, _ = await pool.take(None, is_apart=False)
        first, second = (asyncio.create_task(pool.take(None, is_apart=False)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        pool.give_back(held, is_apart=False)
        taken, is_fresh = await second
        assert (taken, is_fresh) == (held, False)
        pool.give_back(taken, is_apart=False)
        pool.leave(test)
        assert pool.use().open == 0

    run(test)


def test_connections_that_the_server_closed_are_replaced(settings: Any) -> None:
    settings.DATABASE_DATA_PLANE_CONNECTIONS = 3

    async def test() -> None:
        stores = [DataPlaneConnection() for _ in range(3)]
        await asyncio.gather(*(store.execute(SLEEP, []) for store in stores))
        pids = {(await store.execute(PID, []))[0][0] for store in stores}
        await asyncio.to_thread(end_sessions, pids)
        # Nobody fails, and nobody tries a second dead connection.
        found = {(await store.execute(PID, []))[0][0] for store in stores}
        assert not found & pids
        await close(*stores)

    run(test)


def end_sessions(pids: set[int]) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) pid", [list(pids)])
    finally:
        connection.close()


def test_a_database_that_is_away_is_reported_once_per_statement(settings: Any) -> None:
    async def test() -> None:
        pool = Pool(2)
        pool.join(test)
        with pytest.raises(Away):
            await pool.take(None, is_apart=False)
        assert pool.use().busy == 0

    given = dict(connection.settings_dict)
    connection.close()
    options = dict(given["OPTIONS"])
    try:
        connection.settings_dict["HOST"], connection.settings_dict["PORT"] = "127.0.0.1", "1"
        connection.settings_dict["OPTIONS"] = {
            name: value for name, value in options.items() if name != "host"
        }
        run(test)
    finally:
        connection.settings_dict.update(given)
        connection.settings_dict["OPTIONS"] = options
