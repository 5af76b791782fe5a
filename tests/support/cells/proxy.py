"""HAProxy with the shipped configuration, adapted to the ports and paths of this machine."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import requests

from config.local.bootstrap import PROJECT
from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import wait_until

CONFIG: Final = PROJECT / "docs" / "deploy" / "cells" / "haproxy.cfg"


@dataclass
class CellProxy:
    """A running proxy."""

    port: int
    directory: Path

    def add_line(self, code: str, cell: str) -> None:
        """Adds a line to the map of the running proxy, as an operator does after a move."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self.directory / "admin.sock"))
            admin.sendall(f"add map {self.directory}/cells.map {code} {cell}\n".encode())
            assert admin.recv(1000).strip() == b""


@contextlib.contextmanager
def run_proxy(home: int, north: int, lines: str) -> Iterator[CellProxy]:
    """Runs the proxy before two cells, until it is ready."""
    with tempfile.TemporaryDirectory(prefix="causeway-proxy-") as name, reserved_port() as port:
        directory = Path(name)
        (directory / "cells.map").write_text(lines)
        (directory / "haproxy.cfg").write_text(
            adapt(CONFIG.read_text(), directory, port, home, north)
        )
        process = subprocess.Popen(
            ["haproxy", "-f", str(directory / "haproxy.cfg"), "-db"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _wait_until_ready(process, port)
            yield CellProxy(port, directory)
        finally:
            process.terminate()
            process.communicate(timeout=30)


def adapt(config: str, directory: Path, port: int, home: int, north: int) -> str:
    """Returns the shipped text with the ports and paths of this machine."""
    for old, new in (
        ("bind :443 ssl crt /etc/haproxy/certs/ alpn h2,http/1.1", f"bind 127.0.0.1:{port}"),
        ("maxconn 20000", "maxconn 200"),
        ("/etc/haproxy/", f"{directory}/"),
        ("/run/haproxy/", f"{directory}/"),
    ):
        assert old in config
        config = config.replace(old, new)
    config = re.sub(r"home-(\d) 10\.\S+", rf"home-\1 127.0.0.1:{home}", config)
    return re.sub(r"north-(\d) 10\.\S+", rf"north-\1 127.0.0.1:{north}", config)


def _wait_until_ready(process: subprocess.Popen[str], port: int) -> None:
    def is_ready() -> bool:
        assert process.poll() is None, process.communicate()[1]
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"http://127.0.0.1:{port}/healthz", timeout=5).status_code == 200
        return False

    wait_until(is_ready, "HAProxy is not ready")
