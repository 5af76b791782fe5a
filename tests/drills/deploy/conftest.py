"""Wheels, installations and databases that the tests of this room share."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.support.deploy.installation import Installation, build_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def bare(wheel: Path) -> Iterator[Installation]:
    """An installation without any extra."""
    # Below a directory of pytest's, which is private, PostgreSQL could not run as `nobody`.
    folder = Path(tempfile.mkdtemp(prefix="causeway-installed-"))
    folder.chmod(0o755)
    yield Installation.make(folder / "venv", wheel)
    shutil.rmtree(folder)


@pytest.fixture
def empty_database() -> Iterator[str]:
    """The address of a database of its own, beside that of the tests."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    name = f"deploy_{secrets.token_hex(4)}"
    with psycopg.connect(urlunsplit(parts), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        yield urlunsplit(parts._replace(path=f"/{name}"))
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
