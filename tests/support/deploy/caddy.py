"""A real Caddy with the configuration of docs/deploy/compose, on ports that are free."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests

from config.local.bootstrap import PROJECT
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import wait_until

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
    with reserved_port() as plain, reserved_port() as secure, reserved_port() as health:
        yield from _run_on(folder, upstream, (plain, secure, health), variables)


def _run_on(
    folder: Path, upstream: str, ports: tuple[int, int, int], variables: dict[str, str]
) -> Iterator[Caddy]:
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
        wait_until(lambda: process.poll() is not None or _is_ready(caddy), "Caddy is not ready")
        assert process.poll() is None, log.read_text()
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
