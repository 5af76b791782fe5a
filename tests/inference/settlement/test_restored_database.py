"""A running service whose database was restored to an earlier moment believes no old copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests

from config.local import postgres
from tests.support.database.migrated import own_server
from tests.support.machine.waiting import wait_until
from tests.support.operators.catalogue_files import describe_catalogue
from tests.support.processes import MANAGE, Served, manage, set_up, wait_until_started
from tests.support.simulator.server import Simulator

MODEL = "acme/falcon"


@dataclass
class Installation:
    """A PostgreSQL of its own, and a service on it that is never restarted."""

    directory: Path
    url: str
    data: Path
    address: str = ""

    def chat(self, key: str) -> requests.Response:
        return requests.post(
            f"{self.address}/api/v1/chat/completions",
            headers={"Authorization": f"Bearer {key}"},
            json={"model": MODEL, "messages": [{"role": "user", "content": "one"}]},
            timeout=30,
        )

    def stop(self) -> None:
        postgres.stop(self.directory)

    def start(self) -> None:
        postgres.ensure_running(self.directory, durable=False)

    def is_ready(self) -> bool:
        try:
            answer = requests.get(f"{self.address}/readyz", timeout=5)
        except requests.RequestException:
            return False
        return answer.status_code == 200

    @property
    def version(self) -> int:
        [(version,)] = query(self.url, "SELECT routing_version FROM accounts_organization")
        return int(version)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "DATABASE_URL": self.url, "DRAIN_SECONDS": "0"}

    def manage(self, *arguments: str) -> dict[str, Any]:
        """Runs a command and returns what it prints as JSON."""
        done = manage(*arguments, "--json", DATABASE_URL=self.url)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def query(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def installation() -> Iterator[Installation]:
    with own_server() as (directory, url):
        [(data,)] = query(url, "SHOW data_directory")
        yield Installation(directory, url, Path(data))


@pytest.fixture
def served(installation: Installation, simulator: Simulator) -> Iterator[tuple[str, Path]]:
    """Yields the key of an organization, and the log of the service."""
    log = installation.directory / "serve.log"
    file = installation.directory / "catalogue.json"
    file.write_text(json.dumps(describe_catalogue(simulator.base_url, {MODEL: "sim-echo"})))
    made = set_up(file, "100", DATABASE_URL=installation.url)
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), "serve", "--port", "0"],
            env=installation.environment,
            stdout=output,
            stderr=output,
            text=True,
        )
    try:
        served = Served("", process, log)
        wait_until_started(served, 1, has_metrics=False)
        installation.address = served.address
        wait_until(installation.is_ready)
        yield made["api_key"], log
    finally:
        process.terminate()
        process.wait(timeout=30)


def revoke_at(url: str, version: int) -> None:
    """Revokes the inference keys, and gives the change the number that another one had."""
    with psycopg.connect(url) as connection:
        # No trigger numbers or announces it.
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute("UPDATE accounts_apikey SET disabled = TRUE WHERE NOT is_management")
        connection.execute("UPDATE accounts_organization SET routing_version = %s", [version])


@pytest.mark.parametrize("way", ["copied back", "recovered"])
def test_a_running_service_believes_no_copy_of_the_time_before(
    installation: Installation, served: tuple[str, Path], way: str
) -> None:
    key, log = served
    url, backup = installation.url, installation.directory / "backup"
    assert installation.chat(key).status_code == 200

    installation.stop()
    subprocess.run(["cp", "-a", installation.data, backup], check=True)
    installation.start()
    # PostgreSQL was started anew, which is noticed too.
    wait_until(lambda: log.read_text().count("restored or replaced") == 1)
    wait_until(installation.is_ready)
    # The service learns a version that the backup does not have.
    for value in ("TRUE", "FALSE"):
        query(url, f"UPDATE accounts_organization SET requires_zdr = {value}")
    later = installation.version
    assert installation.chat(key).status_code == 200
    query(url, "UPDATE accounts_organization SET name = 'Later'")

    installation.stop()
    shutil.rmtree(installation.data)
    subprocess.run(["cp", "-a", backup, installation.data], check=True)
    if way == "recovered":
        # As after a recovery to a point in time, the database goes on with another timeline.
        signal = installation.data / "recovery.signal"
        signal.touch()
        owner = installation.data.stat()
        os.chown(signal, owner.st_uid, owner.st_gid)
        with (installation.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("restore_command = 'false'\n")
    installation.start()
    wait_until(lambda: query(url, "SELECT pg_is_in_recovery()") == [(False,)])
    assert query(url, "SELECT name FROM accounts_organization") == [("Acme",)]
    # The key is revoked, and its organization gets the very version that the service remembers.
    revoke_at(url, later)
    assert installation.version == later

    wait_until(lambda: log.read_text().count("restored or replaced") == 2)
    # It has lost its heartbeats too, and serves once that is accepted.
    losses = "SELECT count(*) FROM inference_historyloss"
    wait_until(lambda: query(installation.url, losses) == [(1,)])
    installation.manage("accept_history")
    wait_until(installation.is_ready)
    refused = installation.chat(key)
    assert refused.status_code == 401, refused.text
    assert installation.manage("verify_ledger") == {"differences": []}
