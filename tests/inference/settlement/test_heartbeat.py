"""The heartbeat of a worker: what it journals, and a locked table that all workers share."""

from __future__ import annotations

import asyncio

import pytest
from django.db import connection
from django.utils import timezone

from config.api.errors import Unavailable
from config.server.readiness import readiness
from inference.ids import new_generation_id
from inference.models import Journal
from inference.routing.health import HealthTable
from inference.settlement import journal
from inference.settlement.journal import Heartbeat, Progress
from inference.store import run_in_thread

Units = dict[str, int] | None


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


def test_what_was_delivered_joins_what_the_request_says(transactional_db: None) -> None:
    known, spoken, drawn = {"searches": 1}, {"audio_output": 2}, {"output_images": 3}
    cases: list[tuple[Units, Units, Units]] = [
        (None, None, None),
        (known, None, known),
        (None, spoken, spoken),
        (known | {"output_images": 2}, spoken | drawn, known | spoken | drawn),
    ]
    rows = {new_generation_id(): each for each in cases}
    Journal.objects.bulk_create(
        Journal(
            generation_id=pk,
            prompt_tokens=0,
            completion_tokens=0,
            units=stored,
            beat_at=timezone.now(),
        )
        for pk, (stored, _, _) in rows.items()
    )
    progress = [Progress(pk, 3, 4, units) for pk, (_, units, _) in rows.items()]

    async def beat() -> None:
        heartbeat = Heartbeat(lambda is_urgent: progress, HealthTable(), lambda: None)
        heartbeat.start()
        try:
            while await run_in_thread(Journal.objects.filter(completion_tokens=4).count) < 4:
                await heartbeat.flush()
        finally:
            await heartbeat.close()

    asyncio.run(beat())
    found = dict(Journal.objects.values_list("pk", "units"))
    Journal.objects.all().delete()
    assert found == {pk: whole for pk, (_, _, whole) in rows.items()}


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
