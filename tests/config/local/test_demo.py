"""A second start of the demo: its tenant is stopped in the console, or its database is busy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from config.local.demo import prepare_environment
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import wait_until
from tests.support.processes import MANAGE, environment, manage


def run_once(port: int, folder: Path) -> dict[str, Any]:
    done = manage("demo", "--once", "--json", "--port", str(port), DATA_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_until_served(port: int, folder: Path) -> dict[str, Any]:
    """Starts the demo without ``--once``; stops it when it serves, and returns what it said."""
    log = folder / "demo.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), "demo", "--json", "--port", str(port)],
            env=environment(DATA_DIR=str(folder)),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def is_served() -> bool:
        assert process.poll() is None, log.read_text()
        return "Serving until Ctrl-C." in log.read_text()

    try:
        wait_until(is_served, seconds=120)
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(said)
    return found


def change(folder: Path, statements: str) -> None:
    """Does in the demo's own database what its console would do."""
    given = f"from accounts.models import ApiKey, Organization\n{statements}"
    embedded = {"DATABASE_URL": "embedded", "DATA_DIR": str(folder)}
    done = manage("shell", "--verbosity", "0", "-c", given, **embedded)
    assert done.returncode == 0, done.stderr


def test_no_file_stands_for_what_the_demo_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("DATABASE_URL", "DATA_DIR", "UPSTREAM_ALLOWED_NETWORKS", "UPSTREAM_CA_BUNDLE")
    for name in names:
        monkeypatch.setenv(name, "elsewhere")
        monkeypatch.setenv(f"{name}_FILE", "/elsewhere")
    prepare_environment(["--data-dir", str(tmp_path)], Path("/elsewhere"))
    left = {name: os.environ[name] for name in os.environ if name.startswith(names)}
    assert left == {
        "DATABASE_URL": "embedded",
        "DATA_DIR": str(tmp_path),
        "UPSTREAM_ALLOWED_NETWORKS": "127.0.0.0/8",
        "UPSTREAM_CA_BUNDLE": str(tmp_path / "simulator" / "ca.pem"),
    }


def test_the_demo_serves_a_suspended_tenant_and_replaces_a_revoked_key(
    db: None, tmp_path: Path
) -> None:
    with reserved_port() as port:
        first = run_once(port, tmp_path)
        change(tmp_path, "Organization.objects.get().suspend(reason='A look.', by='admin')")
        assert run_until_served(port, tmp_path) == {**first, "completion": None}
        change(
            tmp_path,
            "Organization.objects.get().resume()\n"
            "ApiKey.objects.get(name='Demo inference').revoke()",
        )
        again = run_once(port, tmp_path)
    assert again["completion"]["text"] == first["completion"]["text"]
    assert again["api_key"] != first["api_key"]
    kept = first.keys() - {"api_key", "completion"}
    assert {name: again[name] for name in kept} == {name: first[name] for name in kept}


@contextmanager
def locked(folder: Path, table: str) -> Iterator[None]:
    """Lets nobody write to a table of the demo's own database."""
    given = (
        "from django.db import connection, transaction\n"
        "with transaction.atomic():\n"
        f"    connection.cursor().execute('LOCK TABLE {table} IN EXCLUSIVE MODE')\n"
        "    print('locked', flush=True)\n"
        "    input()"
    )
    process = subprocess.Popen(
        [sys.executable, str(MANAGE), "shell", "--verbosity", "0", "-c", given],
        env=environment(DATABASE_URL="embedded", DATA_DIR=str(folder)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    try:
        yield
    finally:
        process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_the_demo_asks_again_while_its_database_is_busy(db: None, tmp_path: Path) -> None:
    log, refusal = tmp_path / "serve.log", "the database takes no statements (lock, 1 failed)"
    with reserved_port() as port:
        first = run_once(port, tmp_path)
        change(
            tmp_path,
            "from endpoints.models import PrivateEndpoint\n"
            "PrivateEndpoint.objects.get().remove(by='admin')",
        )
        with ThreadPoolExecutor(1) as pool:
            with locked(tmp_path, "endpoints_privateendpoint"):
                running = pool.submit(run_once, port, tmp_path)
                wait_until(lambda: running.done() or refusal in log.read_text())
            again = running.result()
    assert refusal in log.read_text()
    assert again["completion"]["text"] == first["completion"]["text"]
    assert again["private_endpoint_id"] != first["private_endpoint_id"]
