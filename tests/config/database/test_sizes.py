"""A service says at its start that PostgreSQL accepts too few connections for it."""

from __future__ import annotations

import pytest
from django.db import connection

from config.database.sizes import count_connections, warn_of_few_connections
from tests.support.machine.logs import own_lines

pytestmark = pytest.mark.django_db


def find_limit() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SHOW max_connections")
        return int(cursor.fetchone()[0])


def test_a_worker_opens_both_pools_and_a_listener(settings: object) -> None:
    settings.DATABASE_POOL_SIZE = 5  # type: ignore[attr-defined]
    settings.DATABASE_DATA_PLANE_CONNECTIONS = 3  # type: ignore[attr-defined]
    assert count_connections(4) == 4 * (5 + 3 + 1)


def test_too_many_workers_are_warned_of_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    limit = find_limit()
    warn_of_few_connections(1)
    assert own_lines(caplog) == []
    warn_of_few_connections(limit)
    [message] = own_lines(caplog)
    assert f"{limit} workers may open {limit * 13} connections" in message
    assert "DATABASE_POOL_SIZE" in message
