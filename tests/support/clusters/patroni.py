"""Three PostgreSQL under Patroni with etcd and HAProxy, on one machine, by the published files.

The files of ``docs/deploy/ha`` are used as they are; only addresses, ports and directories become
those of this machine. They stand in the environment where the program reads it, and are replaced in
the text of ``haproxy.cfg``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import requests

from tests.support.clusters.pooler import ClusterPooler
from tests.support.clusters.ports import PASSWORD, reserve
from tests.support.clusters.programs import (
    PATRONI,
    Program,
    account,
    descendants,
    give_to_account,
    send_signal,
)
from tests.support.machine.waiting import wait_until

FILES: Final = Path(__file__).resolve().parents[3] / "docs" / "deploy" / "ha"
NODES: Final = ("db1", "db2", "db3")
_BINARIES: Final = "/usr/lib/postgresql/15/bin"


def read_environment(name: str) -> dict[str, str]:
    """Returns the variables of a published environment file."""
    lines = (FILES / name).read_text().splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return dict(pairs)


class Node:
    """A machine of the cluster: PostgreSQL under Patroni."""

    def __init__(self, name: str, directory: Path, etcd: str) -> None:
        self.name = name
        self.directory = directory
        self.port, self.rest_port = reserve(), reserve()
        self._etcd = etcd
        self._program: Program | None = None
        self._frozen: list[int] = []
        directory.mkdir()
        give_to_account(directory)

    @property
    def log(self) -> str:
        logs = [self.directory / "patroni.log"]
        return "\n".join(log.read_text() for log in logs if log.exists())

    def start(self) -> None:
        """Starts Patroni, as its supervisor does."""
        shutil.copy(FILES / "patroni.yml", self.directory / "patroni.yml")
        os.chmod(self.directory / "patroni.yml", 0o644)
        changes = {
            "PATRONI_NAME": self.name,
            "PATRONI_RESTAPI_LISTEN": f"127.0.0.1:{self.rest_port}",
            "PATRONI_RESTAPI_CONNECT_ADDRESS": f"127.0.0.1:{self.rest_port}",
            "PATRONI_POSTGRESQL_LISTEN": f"127.0.0.1:{self.port}",
            "PATRONI_POSTGRESQL_CONNECT_ADDRESS": f"127.0.0.1:{self.port}",
            "PATRONI_POSTGRESQL_DATA_DIR": str(self.directory / "data"),
            "PATRONI_POSTGRESQL_PGPASS": str(self.directory / "pgpass"),
            "PATRONI_ETCD3_HOSTS": self._etcd,
            "PATRONI_SUPERUSER_PASSWORD": PASSWORD,
            "PATRONI_REPLICATION_PASSWORD": PASSWORD,
        }
        self._program = Program(
            "patroni",
            [str(PATRONI), "patroni.yml"],
            self.directory,
            {**read_environment("patroni.env"), **changes},
        )

    def ask(self, path: str) -> int:
        """Returns the status of a question to Patroni, 0 without an answer."""
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"http://127.0.0.1:{self.rest_port}/{path}", timeout=1).status_code
        return 0

    def members(self) -> list[dict[str, Any]]:
        with contextlib.suppress(requests.RequestException):
            url = f"http://127.0.0.1:{self.rest_port}/cluster"
            found: list[dict[str, Any]] = requests.get(url, timeout=1).json()["members"]
            return found
        return []

    def _processes(self) -> list[int]:
        """Returns Patroni, then PostgreSQL, which is in a session of its own."""
        pids = []
        if self._program is not None and self._program.process.poll() is None:
            pids += descendants(self._program.process.pid)
        with contextlib.suppress(OSError, IndexError, ValueError):
            lines = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
            # The number may be another process's by now.
            if f"{self.directory}" in Path(f"/proc/{lines[0]}/cmdline").read_text():
                pids += descendants(int(lines[0]))
        return list(dict.fromkeys(pids))

    def kill(self) -> None:
        """Ends Patroni and PostgreSQL by SIGKILL, as if the machine had lost its power."""
        send_signal([*self._processes(), *self._frozen], signal.SIGKILL)
        self._frozen = []
        if self._program is not None:
            self._program.process.wait()

    def freeze(self) -> None:
        """Stops every process; connections stay open and say nothing more."""
        self._frozen = self._processes()
        send_signal(self._frozen, signal.SIGSTOP)

    def find_receivers(self) -> list[int]:
        """Returns the process that receives the primary's changes, if it runs."""
        found = []
        for pid in self._processes():
            with contextlib.suppress(OSError):
                if b"walreceiver" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def configure(self, **changes: Any) -> None:
        """Changes the configuration of the whole cluster, as ``patronictl edit-config`` does."""
        url = f"http://127.0.0.1:{self.rest_port}/config"
        answer = requests.patch(url, json=changes, timeout=30)
        assert answer.status_code == 200, answer.text

    def thaw(self) -> None:
        send_signal(self._frozen, signal.SIGCONT)
        self._frozen = []

    def stop(self) -> None:
        """Ends everything, whatever its state."""
        self.kill()


class Cluster:
    """Three nodes, one or three etcd, and HAProxy in front of the primary and of the services."""

    def __init__(
        self, directory: Path, *, database: int, gateway: int, services: list[int]
    ) -> None:
        self.directory = directory
        self.database = database
        self.gateway = gateway
        self._services = services
        self.nodes: list[Node] = []
        # What stands before HAProxy, if the drill wants it.
        self.pooler: ClusterPooler | None = None
        self._programs: list[Program] = []

    def start(self, etcds: int) -> None:
        etcd = self._start_etcd(etcds)
        self.nodes = [Node(name, self.directory / name, etcd) for name in NODES]
        for node in self.nodes:
            node.start()
        self.wait_until_whole(180)
        self._start_proxy()
        self._create_database()
        wait_until(self._leads_to_primary, "HAProxy does not know the primary", seconds=90)

    def _start_etcd(self, count: int) -> str:
        names = NODES[:count]
        ports = {name: (reserve(), reserve()) for name in names}
        peers = ",".join(f"{name}=http://127.0.0.1:{ports[name][1]}" for name in names)
        for name, (client, peer) in ports.items():
            directory = self.directory / f"etcd-{name}"
            directory.mkdir()
            give_to_account(directory)
            changes = {
                "ETCD_NAME": name,
                "ETCD_DATA_DIR": str(directory / "data"),
                "ETCD_LISTEN_PEER_URLS": f"http://127.0.0.1:{peer}",
                "ETCD_LISTEN_CLIENT_URLS": f"http://127.0.0.1:{client}",
                "ETCD_INITIAL_ADVERTISE_PEER_URLS": f"http://127.0.0.1:{peer}",
                "ETCD_ADVERTISE_CLIENT_URLS": f"http://127.0.0.1:{client}",
                "ETCD_INITIAL_CLUSTER": peers,
            }
            environment = {**read_environment("etcd.env"), **changes}
            self._programs.append(
                Program("etcd", [shutil.which("etcd") or "etcd"], directory, environment)
            )
        return ",".join(f"127.0.0.1:{client}" for client, _ in ports.values())

    def _start_proxy(self) -> None:
        text = (FILES / "haproxy.cfg").read_text()
        changes = {
            "bind 127.0.0.1:5000": f"bind 127.0.0.1:{self.database}",
            "bind 127.0.0.1:5001": f"bind 127.0.0.1:{reserve()}",
            "bind :8080": f"bind 127.0.0.1:{self.gateway}",
        }
        for node in self.nodes:
            published = f"{node.name}.internal:5432 port 8008"
            changes[published] = f"127.0.0.1:{node.port} port {node.rest_port}"
        for number, port in enumerate(self._services, 1):
            changes[f"serve{number}.internal:8000"] = f"127.0.0.1:{port}"
        for old, new in changes.items():
            assert old in text, old
            text = text.replace(old, new)
        path = self.directory / "haproxy.cfg"
        path.write_text(text)
        proxy = Program(
            "haproxy", ["/usr/sbin/haproxy", "-f", str(path), "-db"], self.directory, {}
        )
        self._programs.append(proxy)
        wait_until(lambda: proxy.is_listening(self.gateway), "HAProxy does not start", seconds=90)

    def _create_database(self) -> None:
        """Creates the role and the database, as the page says."""
        for statement in (
            f"CREATE ROLE causeway LOGIN PASSWORD '{PASSWORD}'",
            "CREATE DATABASE causeway OWNER causeway",
        ):
            primary = self.find_primary()
            assert primary is not None
            subprocess.run(
                [f"{_BINARIES}/psql", "-qc", statement,
                 f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"],
                env={"PGPASSWORD": PASSWORD},
                check=True,
            )  # fmt: skip

    def _leads_to_primary(self) -> bool:
        """Returns whether HAProxy has found the standbys, which it takes for primaries at first."""
        url = f"postgresql://causeway:{PASSWORD}@127.0.0.1:{self.database}/causeway"
        try:
            # It asks the nodes in turn.
            for _ in range(2 * len(NODES)):
                with psycopg.connect(url) as session:
                    if session.execute("SELECT pg_is_in_recovery()").fetchone() != (False,):
                        return False
        except psycopg.OperationalError:
            return False
        return True

    def find_primary(self) -> Node | None:
        """Returns the node that says that it is the primary."""
        for node in self.nodes:
            if node.ask("primary") == 200:
                return node
        return None

    def is_whole(self) -> bool:
        """Returns whether there are a primary, a synchronous standby, and a third node."""
        for node in self.nodes:
            if node.ask("primary") == 200:
                members = node.members()
                roles = sorted(each["role"] for each in members)
                states = {each["state"] for each in members}
                return roles == ["leader", "replica", "sync_standby"] and states <= {
                    "running",
                    "streaming",
                }
        return False

    def is_running(self) -> bool:
        """Returns whether all nodes run, synchronously or not."""
        primary = self.find_primary()
        if primary is None:
            return False
        states = [each["state"] for each in primary.members()]
        return len(states) == len(NODES) and set(states) <= {"running", "streaming"}

    def wait_until_running(self, seconds: float = 120) -> None:
        wait_until(self.is_running, "three nodes do not run", seconds=seconds)

    def wait_until_whole(self, seconds: float = 120) -> None:
        wait_until(self.is_whole, "no synchronous standby", seconds=seconds)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        for program in reversed(self._programs):
            program.stop()


@contextlib.contextmanager
def run_cluster(
    *, etcds: int, database: int, gateway: int, services: list[int]
) -> Iterator[Cluster]:
    """Runs a cluster in a directory of its own, and removes both."""
    directory = Path(tempfile.mkdtemp(prefix="causeway-cluster-"))
    directory.chmod(0o755)
    if account():
        give_to_account(directory)
    cluster = Cluster(directory, database=database, gateway=gateway, services=services)
    try:
        cluster.start(etcds)
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
