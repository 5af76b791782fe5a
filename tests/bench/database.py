"""The PostgreSQL of a system under test: its CPU time and its WAL."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from config.local import postgres


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """Makes a directory; at the end each embedded PostgreSQL in it stops, and all is removed."""
    with tempfile.TemporaryDirectory(prefix="causeway-bench-") as name:
        directory = Path(name)
        # Where PostgreSQL's account cannot enter, the cluster would lie elsewhere, and stay.
        directory.chmod(0o711)
        try:
            yield directory
        finally:
            for lock in directory.rglob("postgres/transition.lock"):
                postgres.stop(lock.parent.parent)


@dataclass(frozen=True)
class Database:
    """A running cluster, by its address and the process that started its other processes."""

    url: str
    postmaster: int

    @classmethod
    def under(cls, data_dir: Path) -> Database:
        """Returns the cluster of a data directory, which a service has started."""
        url = postgres.ensure_running(data_dir)
        with psycopg.connect(url) as connection:
            status = Path(f"/proc/{connection.info.backend_pid}/stat").read_text()
        return cls(url, int(status.rpartition(")")[2].split()[1]))

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(query).fetchall()  # type: ignore[arg-type]

    def wal(self) -> int:
        """Returns the bytes of WAL that were ever written."""
        return int(self.fetch("SELECT pg_current_wal_insert_lsn() - '0/0'")[0][0])

    def cpu(self) -> float:
        """Returns the CPU seconds of all processes of the cluster, also of those that ended."""
        return sum(_ticks(pid, pid == self.postmaster) for pid in self._processes()) / os.sysconf(
            "SC_CLK_TCK"
        )

    def move(self, core: int) -> None:
        """Moves the cluster to a core, and with it all connections that open later."""
        for pid in self._processes():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(pid, {core})

    def _processes(self) -> Iterator[int]:
        yield self.postmaster
        children = Path(f"/proc/{self.postmaster}/task/{self.postmaster}/children").read_text()
        yield from map(int, children.split())


def _ticks(pid: int, with_ended: bool) -> int:
    """Returns the clock ticks of a process; ``with_ended`` adds those of children that ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11 : 15 if with_ended else 13]))
