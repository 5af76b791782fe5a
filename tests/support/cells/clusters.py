"""Two cells on one machine: a PostgreSQL cluster each, with logical replication."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from config.local import postgres
from tests.support.machine.waiting import wait_until
from tests.support.processes import MANAGE


@dataclass
class CellUnderTest:
    """A cell: its name, the URL of its database, and the environment of its commands."""

    name: str
    url: str
    others: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        urls = ",".join(f"{name}={url}" for name, url in self.others.items())
        return {
            **os.environ,
            "DATABASE_URL": self.url,
            "CELL": self.name,
            "CELL_DATABASE_URLS": urls,
            "DRAIN_SECONDS": "0",
            **self.settings,
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(MANAGE), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command and does not wait for it."""
        return subprocess.Popen(
            [sys.executable, str(MANAGE), *arguments],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def manage(self, *arguments: str, check: bool = True) -> dict[str, Any]:
        """Runs a command, which must succeed by default, and returns what it prints as JSON."""
        done = self.run(*arguments, "--json")
        assert not check or done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def wait_for(self, statement: str, wanted: list[tuple[Any, ...]], *parameters: Any) -> None:
        """Waits until a query returns the wanted rows."""
        wait_until(lambda: self.query(statement, *parameters) == wanted)


@contextmanager
def run_cluster() -> Iterator[str]:
    """Starts a cluster that can replicate logically, and yields the URL of its database."""
    with tempfile.TemporaryDirectory(prefix="causeway-cell-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o711)
        url = postgres.ensure_running(directory, durable=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET wal_level = logical")
            connection.execute("ALTER SYSTEM SET max_replication_slots = 20")
        postgres.stop(directory)
        postgres.ensure_running(directory, durable=False)
        try:
            yield url
        finally:
            postgres.stop(directory)


@contextmanager
def run_two_cells() -> Iterator[tuple[CellUnderTest, CellUnderTest]]:
    """Yields a home cell with the bundled catalogue, and the cell ``north`` that has joined it."""
    with run_cluster() as first, run_cluster() as second:
        home = CellUnderTest("home", first, {"north": second})
        north = CellUnderTest("north", second, {"home": first})
        for cell in (home, north):
            done = cell.run("migrate")
            assert done.returncode == 0, done.stderr
        home.manage("join_cell", "north", "--base-url", "https://north.example.com")
        try:
            yield home, north
        finally:
            # A slot that nobody reads would keep the servers from stopping quickly.
            for cell, name in ((home, "causeway_from_north"), (north, "causeway_north")):
                cell.query(f"ALTER SUBSCRIPTION {name} DISABLE")
