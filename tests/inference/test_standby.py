"""A commit whose wait for the standby was cut off is not believed until the standby has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from threading import Thread

import psycopg
import pytest
from django.contrib.sessions.models import Session
from django.db import connection

from config.api.errors import Unavailable
from config.database import direct
from config.sql import Statement
from inference.store import DataPlaneConnection
from tests.support.machine.waiting import wait_until

# As a settlement, it changes nothing when it is repeated.
STORE = Statement(
    "store",
    "INSERT INTO django_session (session_key, session_data, expire_date) "
    "VALUES ('doubtful', '', now()) ON CONFLICT DO NOTHING",
)


def expect_standby(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
        cursor.execute("SELECT pg_reload_conf()")


@pytest.fixture
def missing_standby(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes commits of the data plane wait for a standby that does not come.

    The other tests' sessions wait for none, because theirs commit without waiting for the disk.
    """
    options = connection.settings_dict["OPTIONS"]
    given = options.get("options", "")
    monkeypatch.setitem(options, "options", f"{given} -c synchronous_commit=on".strip())
    monkeypatch.setattr(direct, "STATEMENT_SECONDS", 1.0)
    expect_standby("nobody")
    await_waits()
    yield
    expect_standby("")
    wait_until(lambda: not has_sessions(), "sessions remain", seconds=90)


def await_waits() -> None:
    """Returns once commits wait: the checkpointer tells sessions of the standby some time later."""
    parameters = connection.get_connection_params()

    def commit() -> None:
        with suppress(psycopg.OperationalError), psycopg.connect(**parameters) as session:
            session.autocommit = True
            while True:
                session.execute("SELECT pg_logical_emit_message(true, 'wait', '')")

    committing = Thread(target=commit)
    committing.start()
    wait_until(end_waiting, "no commit waits")
    committing.join()


def end_waiting() -> bool:
    """Ends the sessions whose commits wait; returns whether there was one."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event = 'SyncRep'"
        )
        return bool(cursor.rowcount)


def has_sessions() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND application_name = 'causeway-data-plane' AND wait_event_type <> 'Client'"
        )
        return bool(cursor.fetchone()[0])


def end_waits() -> int:
    """Ends the commits that wait, as a crash of the server does; counts what is stored then."""
    try:
        end_waiting()
        return Session.objects.filter(session_key="doubtful").count()
    finally:
        connection.close()


def end_expectation() -> None:
    try:
        expect_standby("")
    finally:
        connection.close()


def test_a_repetition_waits_for_what_the_first_try_stored(missing_standby: None) -> None:
    async def run() -> None:
        plane = DataPlaneConnection()
        try:
            with pytest.raises(Unavailable):
                await plane.execute(STORE, [])
            # The first try has committed, but no other machine has it.
            assert await asyncio.to_thread(end_waits) == 1
            with pytest.raises(Unavailable):
                await plane.execute(STORE, [])
            await asyncio.to_thread(end_expectation)
            assert await plane.execute(STORE, []) == []
        finally:
            await plane.close()

    asyncio.run(run())
