"""``migrate`` behind a pooler: past it where it can, and with a limit for locks where it cannot."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import OperationalError, connection
from environ import Env

from config.database.lock_limit import limiting_waits
from tests.support import processes
from tests.support.database.migrated import own_database
from tests.support.database.pooler import Pooler, needs_pgbouncer
from tests.support.processes import manage

pytestmark = needs_pgbouncer
WAITING = (
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


@pytest.fixture
def own_url(pooler: Pooler) -> Iterator[str]:
    """Creates a migrated database and yields its URL."""
    with own_database(f"migrating_{os.getpid()}", is_migrated=True) as url:
        yield url


def test_a_migration_gives_way_to_locks(
    own_url: str, pooler: Pooler, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    behind = {"DATABASE_URL": pooler.url(own_url)}
    found = manage("migrate", "inference", "0001", **behind)
    assert found.returncode == 0, found.stderr
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(own_url) as reader,
        psycopg.connect(own_url, autocommit=True) as observer,
    ):
        reader.execute("LOCK TABLE inference_endpointhealth IN ACCESS SHARE MODE")
        migrated = pool.submit(manage, "migrate", **behind)
        eventually(lambda: observer.execute(WAITING).fetchone() == (1,))
        eventually(lambda: observer.execute(WAITING).fetchone() == (0,))
        reader.rollback()
        done = migrated.result(timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Another transaction uses a table that must change." in done.stderr
    assert manage("migrate", "--check", **behind).returncode == 0


def test_a_statement_outside_a_transaction_gives_way_to_a_lock(
    own_url: str, pooler: Pooler, transactional_db: None
) -> None:
    behind = connection.copy("behind")
    behind.settings_dict.update(Env.db_url_config(pooler.url(own_url)))
    with psycopg.connect(own_url) as reader, limiting_waits(behind, 0.5):
        reader.execute("CREATE TABLE notes (id int)")
        reader.commit()
        reader.execute("LOCK TABLE notes IN ROW EXCLUSIVE MODE")
        build = "CREATE INDEX CONCURRENTLY notes_by_id ON notes (id)"
        with (
            behind.cursor() as cursor,
            pytest.raises(OperationalError, match="canceling statement due to user request"),
        ):
            cursor.execute(build)
        reader.rollback()
        with behind.cursor() as cursor:
            cursor.execute("DROP INDEX CONCURRENTLY notes_by_id")
            cursor.execute(build)


def test_the_pooler_is_passed_by(pooled_url: str, pooler: Pooler, transactional_db: None) -> None:
    direct = processes.environment()["DATABASE_URL"]
    pooler.stop()
    assert manage("migrate", DATABASE_URL=pooled_url).returncode == 1
    found = manage("migrate", DATABASE_URL=pooled_url, DATABASE_DIRECT_URL=direct)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("work", "--once")])
def test_a_direct_url_of_another_database_is_refused(
    own_url: str, command: tuple[str, ...], transactional_db: None
) -> None:
    found = manage(*command, DATABASE_DIRECT_URL=own_url)
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == (
        "CommandError: DATABASE_DIRECT_URL leads to another database than DATABASE_URL."
    )
