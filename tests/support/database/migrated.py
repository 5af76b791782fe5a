"""The migrated database, which all processes of a run copy: that takes a second."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import psycopg
from django.conf import settings
from django.db.backends.base.creation import BaseDatabaseCreation
from psycopg.sql import SQL, Identifier

from config.local import postgres
from tests.support.database.kept import NAME, find_cluster
from tests.support.embedded import OWN_SERVER
from tests.support.processes import MANAGE


def migrated_database() -> str | None:
    """Returns the name of the migrated database, which stands in the cluster of the tests.

    Returns None on a server that the environment names: nothing would remove the database there.
    """
    if not os.environ.get(OWN_SERVER):
        return None
    return NAME


def copy_database(
    creation: BaseDatabaseCreation, verbosity: int = 1, autoclobber: bool = False, **_: Any
) -> str:
    """Creates the tests' database as Django does, from its template, and migrates nothing."""
    name: str = creation._get_test_db_name()
    creation._create_test_db(verbosity, autoclobber)
    creation.connection.close()
    settings.DATABASES[creation.connection.alias]["NAME"] = name
    creation.connection.settings_dict["NAME"] = name
    return name


def drop_database(creation: BaseDatabaseCreation, name: str, verbosity: int) -> None:
    """Drops the tests' database as Django does, but ends the sessions that a thread has left."""
    with creation._nodb_cursor() as cursor:
        cursor.execute(f"DROP DATABASE {creation.connection.ops.quote_name(name)} WITH (FORCE)")


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


@contextmanager
def own_server() -> Iterator[tuple[Path, str]]:
    """Yields the directory of a new server, and the URL of the migrated database on it."""
    url = postgres.throwaway(copied=find_cluster())
    directory = Path(parse_qs(urlsplit(url).query)["host"][0]).parents[1]
    try:
        with psycopg.connect(url, dbname="template1", autocommit=True) as server:
            name = Identifier(postgres.DATABASE)
            server.execute(SQL("DROP DATABASE {}").format(name))
            server.execute(SQL("CREATE DATABASE {} TEMPLATE {}").format(name, Identifier(NAME)))
        yield directory, url
    finally:
        postgres.stop(directory)


def _run_migrate(url: str) -> None:
    subprocess.run(
        [sys.executable, str(MANAGE), "migrate", "--verbosity", "0"],
        env={**os.environ, "DATABASE_URL": url},
        check=True,
        timeout=600,
    )


def _url_of(name: str) -> str:
    return urlunsplit(urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}"))
