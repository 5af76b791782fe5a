"""The heartbeat of a worker while a table that it shares with all others is locked."""

from __future__ import annotations

import asyncio

import pytest
from django.db import connection

from config.api.errors import Unavailable
from config.server.readiness import readiness
from inference.routing.health import HealthTable
from inference.settlement import journal
from inference.settlement.journal import Heartbeat


def test_a_lock_does_not_mean_that_the_database_is_away(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage the worker is ready again, although its paces cannot be shared."""

    async def beat() -> None:
        heartbeat = Heartbeat(lambda is_urgent: [], HealthTable(), lambda: None)
        heartbeat.start()
        async with asyncio.timeout(60):
            while not readiness.is_database_available:
                await asyncio.sleep(0.02)
        await heartbeat.close()

    session = connection.copy()
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("LOCK TABLE inference_providerpace IN ACCESS EXCLUSIVE MODE")
        monkeypatch.setattr(readiness, "is_database_available", False)
        asyncio.run(beat())
    finally:
        session.close()


def test_a_database_that_was_away_is_asked_again_soon(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next full heartbeat would be a minute later."""
    monkeypatch.setattr(journal, "_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(readiness, "is_database_available", True)
    asked: list[bool] = []

    async def beat() -> None:
        is_again = asyncio.Event()

        def collect_progress(is_urgent: bool) -> list[journal.Progress]:
            asked.append(is_urgent)
            if len(asked) == 1:
                raise Unavailable
            is_again.set()
            return []

        heartbeat = Heartbeat(collect_progress, HealthTable(), lambda: None)
        heartbeat.interval_seconds = 60.0
        heartbeat.start()
        async with asyncio.timeout(30):
            await is_again.wait()
        await heartbeat.close()

    asyncio.run(beat())
    assert asked[:2] == [False, False]
