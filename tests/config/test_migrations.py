from __future__ import annotations

import hashlib
import io
import os
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django.db.migrations.loader import MigrationLoader
from django_migration_linter import MigrationLinter

from config.management.migrations import find_known_migrations
from tests.support.database.migrated import own_database
from tests.support.processes import manage, serve

# `migrate APP zero` takes one app, and reads all migrations for each.
BACK = """
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

# What depends on an app is reversed with it.
MigrationExecutor(connection).migrate([("accounts", None), ("catalog", None)])
"""
FIRST = "0001_first_release"
FIRST_DIGEST = "5224829c065207ba"
REASONS = "tests/drills/upgrade/reasons.toml"
OURS = [
    config.label
    for config in apps.get_app_configs()
    if Path(config.path).parent == settings.BASE_DIR and config.models_module is not None
]


@pytest.fixture
def empty_database() -> Iterator[str]:
    """Creates an empty database and yields its URL."""
    with own_database(f"migrations_{os.getpid()}") as url:
        yield url


@pytest.fixture
def migrated_url() -> Iterator[str]:
    """Creates a migrated database and yields its URL."""
    with own_database(f"migrated_{os.getpid()}", is_migrated=True) as url:
        yield url


def test_every_model_change_has_a_migration(db: None) -> None:
    call_command("makemigrations", check=True, dry_run=True, stdout=io.StringIO())


def test_the_known_migrations_are_those_that_django_loads() -> None:
    assert find_known_migrations() == MigrationLoader(None).disk_migrations.keys()


def test_the_first_migrations_stay_as_they_are() -> None:
    """They are never changed, and no migration is squashed again: databases have them."""
    digest = hashlib.sha256()
    for path in sorted(settings.BASE_DIR.glob("*/migrations/0001_*.py")):
        digest.update(path.read_bytes())
    assert digest.hexdigest()[:16] == FIRST_DIGEST


@pytest.mark.parametrize("app", OURS)
def test_migrations_can_be_applied_while_workers_run(
    django_db_setup: None, django_db_blocker: Any, app: str
) -> None:
    """A table that stays small may be locked while its index is made: the file has the reason."""
    reasons = tomllib.loads((settings.BASE_DIR / REASONS).read_text())
    small = [
        name.removeprefix(f"{app}.")
        for name, rules in reasons.items()
        if name.startswith(f"{app}.") and "index under a lock" in rules
    ]
    # No transaction: an index cannot be created concurrently in one. The linter only reads.
    with django_db_blocker.unblock():
        linter = MigrationLinter(
            settings.BASE_DIR, include_apps=[app], ignore_name=small, no_cache=True, quiet=["ok"]
        )
        linter.lint_all_migrations()
    assert not linter.has_errors


def test_migrations_can_be_reversed_and_applied_again(migrated_url: str) -> None:
    domain = ["inference", "billing", "endusers", "endpoints", "catalog", "accounts"]
    back = manage("shell", "--no-imports", "-c", BACK, DATABASE_URL=migrated_url)
    assert back.returncode == 0, back.stderr
    with psycopg.connect(migrated_url, autocommit=True) as database:
        applied = "SELECT app, name FROM django_migrations WHERE app = ANY(%s)"
        assert database.execute(applied, [domain]).fetchall() == []
    again = manage("migrate", DATABASE_URL=migrated_url)
    assert again.returncode == 0, again.stderr


def test_a_migration_that_meets_a_lock_gives_way_and_is_tried_again(
    migrated_url: str, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    assert manage("migrate", "inference", "0001", DATABASE_URL=migrated_url).returncode == 0
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(migrated_url) as reader,
        psycopg.connect(migrated_url, autocommit=True) as observer,
    ):
        reader.execute("LOCK TABLE inference_endpointhealth IN ACCESS SHARE MODE")
        migrated = pool.submit(manage, "migrate", DATABASE_URL=migrated_url)
        eventually(lambda: observer.execute(waiting).fetchone() == (1,))
        eventually(lambda: observer.execute(waiting).fetchone() == (0,))
        reader.rollback()
        done = migrated.result(timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Another transaction uses a table that must change." in done.stderr
    assert manage("migrate", "--check", DATABASE_URL=migrated_url).returncode == 0


@pytest.mark.parametrize("command", [("migrate",), ("serve", "--port", "0"), ("work", "--once")])
def test_a_database_of_an_unreleased_version_is_refused(
    empty_database: str, command: tuple[str, ...]
) -> None:
    with psycopg.connect(empty_database, autocommit=True) as database:
        database.execute(
            "CREATE TABLE django_migrations (id bigint GENERATED BY DEFAULT AS IDENTITY, "
            "app varchar(255), name varchar(255), applied timestamptz)"
        )
        database.execute(
            "INSERT INTO django_migrations (app, name, applied) "
            "VALUES ('accounts', '0001_initial', now()), ('accounts', '0002_triggers', now())"
        )
    refused = manage(*command, DATABASE_URL=empty_database)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == (
        "CommandError: The database was made by an unreleased version of Causeway "
        "(accounts.0001_initial, …): remove the data directory, or point DATA_DIR or "
        "DATABASE_URL elsewhere."
    )


def forget(url: str, *names: str) -> None:
    """Removes migrations from those that a database has applied, but not what they did."""
    with psycopg.connect(url) as database:
        database.execute("DELETE FROM django_migrations WHERE name = ANY(%s)", [list(names)])


def read_state(url: str) -> list[tuple[Any, ...]]:
    """Returns the relations and the applied migrations of a database."""
    with psycopg.connect(url) as database:
        return database.execute(
            "SELECT oid::text, relname, relfilenode::text FROM pg_class "
            "UNION ALL SELECT app, name, applied::text FROM django_migrations ORDER BY 1, 2, 3"
        ).fetchall()


def test_what_was_replaced_counts_as_applied(migrated_url: str) -> None:
    forget(migrated_url, FIRST)
    refused = manage("work", "--once", DATABASE_URL=migrated_url)
    assert refused.returncode == 1
    assert f"accounts.{FIRST}, …); run: " in refused.stderr
    for _ in range(2):
        done = manage("migrate", DATABASE_URL=migrated_url)
        assert done.returncode == 0, done.stderr
        assert "No migrations to apply." in done.stdout
    served = manage("work", "--once", DATABASE_URL=migrated_url)
    assert served.returncode == 0
    assert "A later release" not in done.stderr + served.stderr


@pytest.mark.parametrize(
    ("app", "last"), [("accounts", "0010_credential_rest"), ("billing", "0003_repeats")]
)
def test_a_database_with_some_of_what_was_replaced_is_refused(
    migrated_url: str, app: str, last: str
) -> None:
    """Nothing depends on billing: Django would leave its tables as they are."""
    forget(migrated_url, FIRST, last)
    before = read_state(migrated_url)
    for command in (("migrate",), ("work", "--once")):
        refused = manage(*command, DATABASE_URL=migrated_url)
        assert refused.returncode == 1
        assert f"unreleased version of Causeway ({app}.0001_tables, …): " in refused.stderr
    assert read_state(migrated_url) == before


def test_a_database_of_the_next_release_is_served(migrated_url: str) -> None:
    """An operator goes back, or a host of the earlier release restarts in mid-upgrade."""
    with psycopg.connect(migrated_url, autocommit=True) as database:
        database.execute(
            "INSERT INTO django_migrations (app, name, applied) "
            "VALUES ('billing', '9999_of_the_next_release', now())"
        )
    for command in (("migrate",), ("work", "--once")):
        done = manage(*command, DATABASE_URL=migrated_url)
        assert done.returncode == 0, done.stderr
        assert "A later release has migrated the database (billing.9999_of_the" in done.stderr
    with serve(DATABASE_URL=migrated_url) as served:
        assert requests.get(f"{served.address}/readyz", timeout=60).status_code == 200
