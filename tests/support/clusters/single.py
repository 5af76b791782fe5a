"""One PostgreSQL whose faults a test makes: its disk is small, and an administrator reaches it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.support.clusters.programs import Program, account, give_to_account
from tests.support.machine.waiting import wait_until

MAX_CONNECTIONS: Final = 60
_BINARIES: Final = Path("/usr/lib/postgresql/15/bin")
# Room for the cluster, its WAL and the requests of some minutes.
_DISK_MB: Final = 700
_SETTINGS: Final = {
    "max_connections": MAX_CONNECTIONS,
    "max_wal_size": "64MB",
    "min_wal_size": "32MB",
    "shared_buffers": "32MB",
    # The disk is memory, so this costs nothing.
    "fsync": "on",
    "unix_socket_directories": "",
}


class Engine:
    """A PostgreSQL on a port, with the role and the database ``causeway``.

    ``has_disk`` says whether its files lie on a small file system of their own, which takes root.
    """

    def __init__(self, directory: Path, port: int, *, has_disk: bool) -> None:
        self.port = port
        self.has_disk = has_disk
        self._directory = directory
        self._disk = directory / "disk"
        self._filler = self._disk / "filler"
        self._program: Program | None = None

    def create(self) -> None:
        command = [
            f"{_BINARIES}/initdb", "--pgdata", str(self._disk / "data"), "--username", "postgres",
            "--auth", "trust", "--locale", "C.UTF-8", "--encoding", "UTF8",
        ]  # fmt: skip
        subprocess.run(
            command, check=True, cwd=self._directory, user=account(), stdout=subprocess.DEVNULL
        )
        self.start()
        self.administer("CREATE ROLE causeway LOGIN")
        self.administer("CREATE DATABASE causeway OWNER causeway")

    def start(self) -> None:
        options = [f"-c{name}={value}" for name, value in _SETTINGS.items()]
        command = [
            f"{_BINARIES}/postgres", "-D", str(self._disk / "data"), "-h", "127.0.0.1",
            "-p", str(self.port), *options,
        ]  # fmt: skip
        self._program = Program("postgres", command, self._directory, {})
        wait_until(self.answers, "PostgreSQL does not start", seconds=90)

    def answers(self) -> bool:
        return self._ask("SELECT 1").returncode == 0

    @property
    def is_running(self) -> bool:
        return self._program is not None and self._program.process.poll() is None

    def administer(self, statement: str, database: str = "postgres") -> str:
        """Runs a statement as the superuser, whose slots nobody else gets."""
        shown = self._ask(statement, database)
        assert shown.returncode == 0, shown.stderr
        return shown.stdout.strip()

    def _ask(self, statement: str, database: str = "postgres") -> subprocess.CompletedProcess[str]:
        target = f"host=127.0.0.1 port={self.port} user=postgres dbname={database}"
        return subprocess.run(
            [f"{_BINARIES}/psql", "-AtXqc", statement, target],
            env={"PGCONNECT_TIMEOUT": "5", "PGOPTIONS": "-c default_transaction_read_only=off"},
            capture_output=True,
            text=True,
        )

    def fill_disk(self) -> None:
        """Leaves no room, and writes into PostgreSQL's log, so that it uses what it had set aside.

        Call it again and again: a checkpoint makes room. Without any for the next segment of its
        log PostgreSQL ends all connections, and does not start again.
        """
        for size in (1 << 20, 512):
            with self._filler.open("ab", buffering=0) as filler, contextlib.suppress(OSError):
                while True:
                    filler.write(bytes(size))
        self._ask("SELECT pg_logical_emit_message(false, 'noise', repeat('x', 4000000))")

    def free_disk(self) -> None:
        """Makes room, and starts PostgreSQL if it stopped for the lack of it."""
        self._filler.unlink()
        if not self.is_running:
            self.start()

    def stop(self) -> None:
        if self._program is not None:
            self._program.process.send_signal(2)
            self._program.stop()

    @property
    def log(self) -> str:
        return (self._directory / "postgres.log").read_text()


@contextlib.contextmanager
def run_engine(port: int) -> Iterator[Engine]:
    """Runs an engine in a directory of its own, and removes both."""
    directory = Path(tempfile.mkdtemp(prefix="causeway-engine-"))
    directory.chmod(0o755)
    disk = directory / "disk"
    disk.mkdir()
    has_disk = False
    if os.geteuid() == 0:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "causeway-faults", str(disk)]
        has_disk = subprocess.run(mount, capture_output=True).returncode == 0
    give_to_account(directory)
    give_to_account(disk)
    engine = Engine(directory, port, has_disk=has_disk)
    try:
        engine.create()
        yield engine
    finally:
        engine.stop()
        if has_disk:
            subprocess.run(["umount", str(disk)], check=False)
        shutil.rmtree(directory, ignore_errors=True)
