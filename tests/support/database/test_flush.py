"""What a transactional test leaves to the next one."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from tests.support.database.flush import is_superuser, reset_session

LEAVING = """
SET deadlock_timeout = '1min';
SET TimeZone = 'Asia/Tokyo';
LISTEN news;
CREATE TEMP TABLE left_over (id int);
DECLARE left_open CURSOR WITH HOLD FOR SELECT 1;
SELECT pg_advisory_lock(7)
"""
SETTINGS = "SELECT name, setting FROM pg_settings WHERE name <> 'transaction_isolation' ORDER BY 1"


def read(statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall())


@pytest.mark.django_db(transaction=True)
def test_the_next_test_finds_the_session_as_if_it_were_new() -> None:
    own, settings = read("SELECT pg_backend_pid()"), read(SETTINGS)
    with connection.cursor() as cursor:
        cursor.execute(LEAVING)
    assert read(SETTINGS) != settings
    assert read("SELECT pg_listening_channels()") == [("news",)]

    reset_session(connection)
    assert read("SELECT pg_backend_pid()") == own
    assert read(SETTINGS) == settings
    assert read("SELECT pg_listening_channels()") == []
    assert read("SELECT to_regclass('pg_temp.left_over')") == [(None,)]
    assert read("SELECT name FROM pg_cursors") == []
    # PostgreSQL says whether the session held the lock.
    assert read("SELECT pg_advisory_unlock(7)") == [(False,)]


@pytest.fixture(scope="module")
def sessions() -> set[int]:
    return set()


@pytest.mark.parametrize("number", [1, 2])
def test_transactional_tests_share_a_session(
    transactional_db: None, sessions: set[int], number: int
) -> None:
    if not is_superuser(connection):
        pytest.skip("only a superuser's tables are emptied")
    sessions.update(pid for (pid,) in read("SELECT pg_backend_pid()"))
    assert len(sessions) == 1
