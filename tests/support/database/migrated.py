"""One migrated database for all processes of a run: they copy it, which takes a second."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg.sql import SQL, Identifier

from tests.support.embedded import OWN_SERVER
from tests.support.processes import MANAGE

_NAME: Final = "migrated"


def migrated_database() -> str | None:
    """Returns the name of the migrated database, which the first process that asks makes.

    Returns None on a server that the environment names: nothing would remove the database there.
    """
    if not os.environ.get(OWN_SERVER):
        return None
    directory = Path(os.environ["CAUSEWAY_TEST_DIR"])
    finished = directory / "migrated"
    with (directory / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            _migrate()
            finished.touch()
    return _NAME


@contextmanager
def own_database(name: str, *, is_migrated: bool = False) -> Iterator[str]:
    """Yields the URL of a new database beside that of the tests: an empty or a migrated one."""
    url = _url_of(name)
    template = migrated_database() if is_migrated else None
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(
            SQL("CREATE DATABASE {} TEMPLATE {}").format(
                Identifier(name), Identifier(template or "template1")
            )
        )
        try:
            if is_migrated and template is None:
                _run_migrate(url)
            yield url
        finally:
            server.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def _migrate() -> None:
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute(SQL("CREATE DATABASE {}").format(Identifier(_NAME)))
        _run_migrate(_url_of(_NAME))
        # A database that somebody is connected to, autovacuum for instance, cannot be copied.
        server.execute(SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(Identifier(_NAME)))


def _run_migrate(url: str) -> None:
    subprocess.run(
        [sys.executable, str(MANAGE), "migrate", "--verbosity", "0"],
        env={**os.environ, "DATABASE_URL": url},
        check=True,
        timeout=600,
    )


def _url_of(name: str) -> str:
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))
