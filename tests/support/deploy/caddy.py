"""A real Caddy with the configuration of docs/deploy/compose, on ports that are free."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from config.local.bootstrap import PROJECT
from tests.support.processes import free_port

CADDYFILE = PROJECT / "docs" / "deploy" / "compose" / "Caddyfile"
PROGRAM = shutil.which("caddy")


@dataclass
class Caddy:
    """A running Caddy, the certificate of the authority that it made, and its log."""

    address: str
    plain_address: str
    authority: str
    log_file: Path


@contextmanager
def run_caddy(folder: Path, upstream: str, **variables: str) -> Iterator[Caddy]:
    """Runs Caddy for localhost in front of an upstream until it believes that this is ready."""
    assert PROGRAM is not None
    ports = [free_port() for _ in range(3)]
    log = folder / "caddy.log"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "CAUSEWAY_HOST": "localhost",
        "CAUSEWAY_UPSTREAM": upstream,
        "HTTP_PORT": str(ports[0]),
        "HTTPS_PORT": str(ports[1]),
        "HEALTH_PORT": str(ports[2]),
        **variables,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, "run", "--config", CADDYFILE, "--adapter", "caddyfile"],
            env=environment,
            stdout=output,
            stderr=output,
        )
    authority = folder / "data" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    caddy = Caddy(
        f"https://localhost:{ports[1]}", f"http://localhost:{ports[0]}", str(authority), log
    )
    try:
        deadline = time.monotonic() + 60
        while not _is_ready(caddy):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield caddy
    finally:
        process.kill()
        process.wait()


def _is_ready(caddy: Caddy) -> bool:
    if not Path(caddy.authority).exists():
        return False
    try:
        answer = requests.get(f"{caddy.address}/readyz", verify=caddy.authority, timeout=5)
    except requests.RequestException:
        return False
    return answer.status_code == 200
