"""Programs of a cluster: processes with a log each, under an account that PostgreSQL accepts."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

# Debian's package, for each program that is run.
PACKAGES: Final = {"etcd": "etcd-server", "haproxy": "haproxy", "pg_rewind": "postgresql-15"}
_BINARIES: Final = Path("/usr/lib/postgresql/15/bin")


def find_missing(*names: str) -> str:
    """Returns which packages of programs must be installed first as one sentence, or nothing."""
    found = {"pg_rewind": (_BINARIES / "pg_rewind").exists()}
    missing = [PACKAGES[name] for name in names if not found.get(name, shutil.which(name))]
    if not missing:
        return ""
    return f"Install first: apt-get install --no-install-recommends {' '.join(sorted(missing))}"


# The published version, in an environment of its own; Debian 12 has one that loses history.
PATRONI: Final = Path(os.environ.get("PATRONI", "/opt/patroni/bin/patroni"))


def find_missing_patroni() -> str:
    """Returns how to install Patroni, or nothing if it is there."""
    if PATRONI.exists():
        return ""
    return f"Install Patroni in {PATRONI.parents[1]}, as docs/deploy/ha/index.md does"


def account() -> str | None:
    """Returns whom PostgreSQL runs as when the caller is root, which it refuses."""
    return "postgres" if os.geteuid() == 0 else None


def give_to_account(path: Path) -> None:
    if name := account():
        entry = pwd.getpwnam(name)
        os.chown(path, entry.pw_uid, entry.pw_gid)


class Program:
    """A process in a session of its own; its output goes to ``<name>.log`` in a directory."""

    def __init__(
        self, name: str, arguments: Sequence[str], directory: Path, environment: Mapping[str, str]
    ) -> None:
        self.log = directory / f"{name}.log"
        # The environment of the tests is not the program's, least of all their PYTHONPATH.
        kept = {key: os.environ[key] for key in ("PATH", "LANG", "TZ") if key in os.environ}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                arguments,
                cwd=directory,
                env={**kept, "HOME": str(directory), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=account(),
                start_new_session=True,
            )

    def assert_runs(self) -> None:
        assert self.process.poll() is None, self.log.read_text()[-4000:]

    def is_listening(self, port: int) -> bool:
        self.assert_runs()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def stop(self, seconds: float = 20) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def descendants(pid: int) -> list[int]:
    """Returns a process and all processes below it."""
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += descendants(int(child))
    return found


def send_signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
