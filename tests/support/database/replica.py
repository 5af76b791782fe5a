"""A streaming replica of the tests' PostgreSQL, made by pg_basebackup."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg

from tests.support.clusters.programs import descendants, send_signal
from tests.support.machine.waiting import wait_until

_PORT: Final = 5432
_DEADLINE_SECONDS: Final = 60


@dataclass
class Replica:
    """A standby that runs, or that was stopped for a while."""

    home: Path
    programs: Path
    uid: int
    settings: dict[str, str]
    process: subprocess.Popen[bytes] | None = field(default=None)

    def url(self, url: str) -> str:
        """Returns the URL of the same database on the replica."""
        parts = urlsplit(url)
        return urlunsplit(
            parts._replace(
                netloc=f"{parts.username}@:{_PORT}", query=f"host={quote(str(self.home), safe='')}"
            )
        )

    def start(self) -> None:
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.home / "data", *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                **_identity(self.uid),
            )  # fmt: skip
        wait_until(self.answers, "the standby does not start", seconds=_DEADLINE_SECONDS)

    def answers(self) -> bool:
        try:
            self.ask("SELECT pg_is_in_recovery()")
        except psycopg.OperationalError:
            assert self.process is not None
            assert self.process.poll() is None, (self.home / "log").read_text()
            return False
        return True

    def kill(self) -> None:
        """Ends it as a crash does."""
        if self.process is not None:
            send_signal(descendants(self.process.pid), signal.SIGKILL)
            self.process.wait(_DEADLINE_SECONDS)
            self.process = None
            # Otherwise it would wait for the shared memory of its former processes.
            (self.home / "data" / "postmaster.pid").unlink(missing_ok=True)

    def hang(self) -> None:
        """Stops all its processes, so that connections are accepted and nobody answers."""
        assert self.process is not None
        send_signal(descendants(self.process.pid), signal.SIGSTOP)

    def wake(self) -> None:
        if self.process is not None:
            send_signal(descendants(self.process.pid), signal.SIGCONT)

    def pause(self) -> None:
        """Lets it stay as it is, whatever the primary writes."""
        self.ask("SELECT pg_wal_replay_pause()")
        query = "SELECT pg_get_wal_replay_pause_state()"
        wait_until(lambda: self.ask(query) == "paused", seconds=_DEADLINE_SECONDS)

    def resume(self) -> None:
        self.ask("SELECT pg_wal_replay_resume()")

    def catch_up(self) -> None:
        """Waits until it has all that is committed now."""
        with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as primary:
            # The tests' PostgreSQL commits before it writes.
            query = "SELECT pg_current_wal_insert_lsn()::text"
            [position] = primary.execute(query).fetchone() or ("",)
        query = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
        wait_until(lambda: self.ask(query), seconds=_DEADLINE_SECONDS)

    def ask(self, query: str) -> Any:
        with psycopg.connect(
            self.url(os.environ["DATABASE_URL"]), dbname="postgres", autocommit=True
        ) as session:
            [found] = session.execute(query).fetchone() or (None,)  # type: ignore[arg-type]
            return found


@contextmanager
def run_replica() -> Iterator[Replica]:
    """Makes a replica of the tests' PostgreSQL, which runs on this machine, and removes it."""
    url = os.environ["DATABASE_URL"]
    with psycopg.connect(url, autocommit=True) as primary:
        [pid, most] = primary.execute(
            "SELECT pg_backend_pid(), current_setting('max_connections')"
        ).fetchone() or (0, "")
        programs = Path(f"/proc/{pid}/exe").resolve().parent
        uid = Path(f"/proc/{pid}").stat().st_uid
    home = Path(tempfile.mkdtemp(prefix="causeway-replica-"))
    try:
        os.chown(home, uid, -1)
        settings = {
            "listen_addresses": "", "port": str(_PORT), "unix_socket_directories": str(home),
            "max_connections": most, "fsync": "off",
        }  # fmt: skip
        subprocess.run(
            [programs / "pg_basebackup", "-d", url.replace("?", "?replication=true&", 1),
             "-D", home / "data", "-X", "stream", "-R", "-N", "-c", "fast"],
            check=True, cwd="/", **_identity(uid),
        )  # fmt: skip
        replica = Replica(home, programs, uid, settings)
        replica.start()
        try:
            yield replica
        finally:
            replica.wake()
            replica.kill()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def run_balancer(*replicas: Replica) -> Iterator[Replica]:
    """Yields an address that leads one connection after another to the replicas in turn."""
    turns = itertools.cycle(replicas)
    name = f".s.PGSQL.{_PORT}"

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(str(next(turns).home / name))
                back = threading.Thread(target=_pass_on, args=(server, self.request), daemon=True)
                back.start()
                _pass_on(self.request, server)
                back.join()

    with tempfile.TemporaryDirectory(prefix="causeway-balancer-") as directory:
        home = Path(directory)
        with socketserver.ThreadingUnixStreamServer(str(home / name), Handler) as balancer:
            balancer.daemon_threads = True
            threading.Thread(target=balancer.serve_forever, daemon=True).start()
            try:
                yield replace(replicas[0], home=home)
            finally:
                balancer.shutdown()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while block := source.recv(65536):
            target.sendall(block)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _identity(uid: int) -> dict[str, Any]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    as_other = {"user": uid, "extra_groups": []} if os.geteuid() != uid else {}
    return {"env": {**kept, "LC_ALL": "C", "TZ": "UTC"}, **as_other}
