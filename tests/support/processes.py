"""The service as its operator runs it: ``manage.py`` in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import requests
from django.db import connection

from tests.support.machine.waiting import wait_until

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
# The variable that names the pooler before the database of every service.
POOLER_ADDRESS = "CAUSEWAY_TEST_POOLER_ADDRESS"
# What a service says of itself, in plain lines and in JSON.
_ADDRESS = re.compile(r"^Serving on (\S+) with \d+ worker", re.MULTILINE)
_READY = re.compile(r"\bworker \d+ is ready\b")


def environment(**changes: str) -> dict[str, str]:
    """The environment of this run, with the test's own database in place of the first one."""
    parts = urlsplit(os.environ["DATABASE_URL"])
    if pooler := os.environ.get(POOLER_ADDRESS):
        parts = parts._replace(netloc=f"{parts.username}@{pooler}", query="")
    url = urlunsplit(parts._replace(path=f"/{connection.settings_dict['NAME']}"))
    return {**os.environ, "DATABASE_URL": url, "DRAIN_SECONDS": "0", **changes}


def manage(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        [sys.executable, str(MANAGE), *arguments],
        env=environment(**changes),
        capture_output=True,
        text=True,
        # Migrating from nothing takes a minute where four processes share two cores.
        timeout=600,
    )


_SET_UP = """
import io, os
from django.core.management import call_command
from accounts.models import Organization
made, rest = io.StringIO(), {"stdout": io.StringIO()}
call_command("import_catalog", os.environ["CATALOGUE"], **rest)
call_command("set_provider_credential", "acme", **rest)
call_command("create_organization", "Acme", "--json", stdout=made)
call_command("grant_credits", str(Organization.objects.get().pk), os.environ["CREDITS"], **rest)
print(made.getvalue())
"""


def set_up(catalogue: Path, credits_usd: str, **changes: str) -> dict[str, str]:
    """Imports a catalogue with the provider ``acme``, and creates an organization with credits.

    Returns its ids and keys. One process runs the four commands.
    """
    done = subprocess.run(
        [sys.executable, str(MANAGE), "shell", "--verbosity", "0", "-c", _SET_UP],
        env=environment(CATALOGUE=str(catalogue), CREDITS=credits_usd, **changes),
        input="operator-secret-0123456789",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@dataclass
class Served:
    """A running ``serve``."""

    address: str
    process: subprocess.Popen[str]
    log_file: Path

    @property
    def log(self) -> str:
        """What the service has written to its log so far."""
        return self.log_file.read_text()

    def stop(self) -> tuple[int, str]:
        """Asks it to stop as a supervisor does; its exit code and what it printed."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        self.process.wait(timeout=30)
        return self.process.returncode, self.log


def wait_until_served(served: Served) -> None:
    """Returns once the service answers; fails when it ends."""

    def answers() -> bool:
        assert served.process.poll() is None, served.log
        with suppress(requests.RequestException):
            return requests.get(f"{served.address}/healthz", timeout=60).status_code == 200
        return False

    wait_until(answers, "it does not answer")


def wait_until_started(served: Served, workers: int, *, has_metrics: bool) -> None:
    """Reads the address of a service from its log, and waits until each of its workers serves."""
    # A single worker has no supervisor, which would tell that it is ready.
    processes = 0 if workers == 1 else workers + has_metrics

    def has_started() -> bool:
        assert served.process.poll() is None, served.log
        log = served.log
        if found := _ADDRESS.search(log):
            served.address = found[1]
        return bool(found) and len(_READY.findall(log)) == processes

    wait_until(has_started, "its workers do not become ready")
    wait_until_served(served)


@contextmanager
def serve(*arguments: str, **changes: str) -> Iterator[Served]:
    """Runs ``serve`` until all its workers are ready, and makes sure that it ends."""
    with tempfile.NamedTemporaryFile("w", prefix="causeway-log-") as log:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), "serve", "--port", "0", *arguments],
            env=environment(**changes),
            stderr=log,
            text=True,
        )
        served = Served("", process, Path(log.name))
        try:
            workers = int(arguments[arguments.index("--workers") + 1]) if arguments else 1
            wait_until_started(served, workers, has_metrics="METRICS_PORT" in changes)
            yield served
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
