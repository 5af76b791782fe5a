"""PgBouncer in transaction mode, before the PostgreSQL of the tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

import pytest

from tests.support.machine.ports import reserved_port
from tests.support.machine.waiting import wait_until
from tests.support.processes import POOLER_ADDRESS

# What Debian's configuration leaves as it is: 20 connections to a database, 100 clients, no startup
# parameter that PgBouncer does not know. Only the mode is another one.
_CONFIGURATION: Final = """
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {home}/users
logfile = {home}/log
pidfile = {home}/pid
pool_mode = transaction
{more}
"""


_PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
needs_pgbouncer = pytest.mark.skipif(
    _PROGRAM is None, reason="Debian's package pgbouncer is not installed"
)


@dataclass
class Pooler:
    """A PgBouncer that runs, or that was stopped for a while."""

    home: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def log(self) -> str:
        return (self.home / "log").read_text()

    def start(self) -> None:
        as_root = ["-u", "nobody"] if os.getuid() == 0 else []
        self.process = subprocess.Popen(
            [str(_PROGRAM), "-q", *as_root, str(self.home / "ini")], stderr=subprocess.DEVNULL
        )
        wait_until(self.listens, "PgBouncer does not start")

    def listens(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5):
            return True
        return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ends it as SIGTERM does: at once, with all connections of clients and to the server."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None

    def url(self, url: str) -> str:
        """Returns the URL of the same database through the pooler."""
        parts = urlsplit(url)
        return urlunsplit(
            parts._replace(netloc=f"{parts.username}@127.0.0.1:{self.port}", query="")
        )


@contextmanager
def pool_services(url: str) -> Iterator[None]:
    """Lets the services of ``tests.support.processes`` reach their server through PgBouncer."""
    with run_pooler(url) as pooler, pytest.MonkeyPatch.context() as patch:
        patch.setenv(POOLER_ADDRESS, f"127.0.0.1:{pooler.port}")
        yield


@contextmanager
def run_pooler(url: str, *more: str) -> Iterator[Pooler]:
    """Runs PgBouncer with its defaults before the server of a URL; ``more`` are further lines."""
    parts = urlsplit(url)
    host = parse_qs(parts.query).get("host", [parts.hostname or "127.0.0.1"])[0]
    with (
        reserved_port() as port,
        tempfile.TemporaryDirectory(prefix="causeway-pooler-") as directory,
    ):
        home = Path(directory)
        home.chmod(0o777)
        server = f"host={host} port={parts.port or 5432}"
        if parts.password:
            server += f" password={quote(parts.password)}"
        (home / "users").write_text(f'"{parts.username}" ""\n')
        (home / "ini").write_text(
            _CONFIGURATION.format(server=server, port=port, home=home, more="\n".join(more))
        )
        pooler = Pooler(home, port)
        pooler.start()
        try:
            yield pooler
        finally:
            pooler.stop()
