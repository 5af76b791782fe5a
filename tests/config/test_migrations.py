from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from django.apps import apps
from django.conf import settings
from django.core.management import call_command
from django_migration_linter import MigrationLinter

from tests.support.processes import manage

OURS = [
    config.label
    for config in apps.get_app_configs()
    if Path(config.path).parent == settings.BASE_DIR and config.models_module is not None
]


@pytest.fixture
def empty_database() -> Iterator[str]:
    """The address of a database with nothing in it, for commands to work on."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    name = f"migrations_{os.getpid()}"
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(f"CREATE DATABASE {name}")
        yield urlunsplit(parts._replace(path=f"/{name}"))
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_the_models_have_no_change_without_a_migration(db: None) -> None:
    call_command("makemigrations", check=True, dry_run=True, stdout=io.StringIO())


@pytest.mark.parametrize("app", OURS)
def test_migrations_can_be_applied_under_running_workers(
    django_db_setup: None, django_db_blocker: Any, app: str
) -> None:
    # Without a transaction, in which no index can be made concurrently; it only reads.
    with django_db_blocker.unblock():
        linter = MigrationLinter(settings.BASE_DIR, include_apps=[app], no_cache=True, quiet=["ok"])
        linter.lint_all_migrations()
    assert not linter.has_errors


def test_migrations_go_forth_and_back(empty_database: str) -> None:
    forth = manage("migrate", DATABASE_URL=empty_database)
    assert forth.returncode == 0, forth.stderr
    for app in ("inference", "billing", "endusers", "endpoints", "catalog", "accounts"):
        back = manage("migrate", app, "zero", DATABASE_URL=empty_database)
        assert back.returncode == 0, back.stderr
    again = manage("migrate", DATABASE_URL=empty_database)
    assert again.returncode == 0, again.stderr
