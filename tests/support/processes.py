"""The service as its operator runs it: ``manage.py`` in a process of its own."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import requests
from django.db import connection

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
# The variable that names the pooler before the database of every service.
POOLER_ADDRESS = "CAUSEWAY_TEST_POOLER_ADDRESS"


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


def free_port() -> int:
    """A port that nobody listens on, below those that the system gives to connections meanwhile."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


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
    """Returns once the service answers; fails when it ends, or after two minutes."""
    deadline = time.monotonic() + 120
    while True:
        try:
            if requests.get(f"{served.address}/healthz", timeout=60).status_code == 200:
                return
        except requests.RequestException:
            assert served.process.poll() is None, served.log
        assert time.monotonic() < deadline, "it does not answer"
        time.sleep(0.05)


@contextmanager
def serve(*arguments: str, **changes: str) -> Iterator[Served]:
    """Runs ``serve`` on a free port until it answers, and makes sure that it ends."""
    port = free_port()
    with tempfile.NamedTemporaryFile("w", prefix="causeway-log-") as log:
        process = subprocess.Popen(
            [sys.executable, str(MANAGE), "serve", "--port", str(port), *arguments],
            env=environment(**changes),
            stderr=log,
            text=True,
        )
        served = Served(f"http://127.0.0.1:{port}", process, Path(log.name))
        try:
            wait_until_served(served)
            yield served
        finally:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
