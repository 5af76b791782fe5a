"""Releases of the project, each in a folder and an environment of its own, and their processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from config.local.bootstrap import PROJECT
from tests.support.machine.ports import reserved_port

BASE: Final = Path(__file__).with_name("base")
_START_SECONDS: Final = 120.0
# Streams that are open when a service is stopped end within this time.
_STOP_SECONDS: Final = 180.0
# They would point a release at this environment or at another one's settings.
_OTHERS: Final = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "DJANGO_SETTINGS_MODULE")


class HistoryMissing(Exception):
    """The clone does not have the commit; the message says how to get it."""


def read_base(project: Path = PROJECT) -> str:
    """Returns the commit that ``base`` names; raises :class:`HistoryMissing` without it."""
    commit = BASE.read_text().strip()
    command = ["git", "-C", str(project), "cat-file", "-e", f"{commit}^{{commit}}"]
    if subprocess.run(command, capture_output=True).returncode:
        raise HistoryMissing(
            f"The commit {commit} of tests/drills/upgrade/base is not in this clone, so an "
            "upgrade from it cannot be tested: run `git fetch --unshallow`, or clone with the "
            "whole history."
        )
    return commit


@dataclass
class Release:
    """A checkout of the project, the interpreter that starts it, and its settings."""

    name: str
    folder: Path
    python: str
    settings: dict[str, str]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: text for name, text in os.environ.items() if name not in _OTHERS}
        return {**kept, **self.settings}

    def run(self, *arguments: str, data: str = "") -> subprocess.CompletedProcess[str]:
        """Runs an interpreter of this release to its end, in its folder."""
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=self.environment,
            input=data,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def manage(self, *arguments: str, data: str = "") -> str:
        """Runs a management command and returns its standard output."""
        done = self.run("manage.py", *arguments, data=data)
        if done.returncode:
            raise AssertionError(f"{self.name}: {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def manage_json(self, *arguments: str, data: str = "") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.manage(*arguments, "--json", data=data))
        return found


def check_out(commit: str, folder: Path, settings: dict[str, str]) -> Release:
    """Writes the tree of a commit to a folder, and installs its locked dependencies there."""
    folder.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(PROJECT), "archive", commit], check=True, capture_output=True
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    # The interpreter beneath this environment, so that the release makes one of its own.
    python = str(Path(sys.base_prefix) / "bin" / "python3")
    release = Release(commit[:7], folder, python, settings)
    release.manage("check")
    release.python = str(folder / ".venv" / "bin" / "python")
    return release


def copy_present(folder: Path, settings: dict[str, str]) -> Release:
    """Copies this checkout as it is, so that an edit meanwhile does not reach the processes."""
    folder.mkdir(parents=True)
    listed = subprocess.run(
        ["git", "-C", str(PROJECT), "ls-files", "-z", "-co", "--exclude-standard", "--deduplicate"],
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT / name, folder / name)
    return Release("this", folder, sys.executable, settings)


@dataclass
class Running:
    """A process of a release: ``serve`` with its port, or ``work`` without one."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Stops it as a supervisor does, and requires that it ends with 0."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(_STOP_SECONDS)
        if code:
            raise AssertionError(f"{self.name} ended with {code}: {self.tail()}")

    def kill(self) -> None:
        """Kills it with its workers, as a host does that loses its power."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        for pid in [*map(int, children.split()), self.process.pid]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(_STOP_SECONDS)

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


@contextlib.contextmanager
def serve(release: Release, logs: Path, port: int = 0) -> Iterator[Running]:
    """Runs ``serve`` with two workers until the block ends; yields it once it is ready."""
    with contextlib.ExitStack() as stack:
        # An older release does not say which port it has chosen.
        port = port or stack.enter_context(reserved_port())
        arguments = ("serve", "--port", str(port), "--workers", "2")
        name = f"{release.name}-serve-{port}"
        running = stack.enter_context(_start(release, logs, name, arguments))
        running.port = port
        await_ready(f"{running.address}/readyz", running)
        yield running


@contextlib.contextmanager
def work(release: Release, logs: Path) -> Iterator[Running]:
    """Runs ``work`` until the block ends."""
    with _start(release, logs, f"{release.name}-work", ("work",)) as running:
        yield running


def await_ready(address: str, running: Running | None = None) -> None:
    """Returns once the address answers 200."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=5) as answer:
            if answer.status == 200:
                return
        if running is not None and running.process.poll() is not None:
            raise AssertionError(f"{running.name} has ended: {running.tail()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"{address} does not answer")
        time.sleep(0.1)


@contextlib.contextmanager
def _start(
    release: Release, logs: Path, name: str, arguments: tuple[str, ...]
) -> Iterator[Running]:
    log = logs / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [release.python, "manage.py", *arguments],
            cwd=release.folder,
            env=release.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield Running(name, process, log)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def proxy(directory: Path, ports: list[int]) -> Iterator[int]:
    """Runs HAProxy in front of services; yields its port. A service that is not there is skipped.

    Every answer has the name of its service, ``s`` and the port, in ``X-Server``.
    """
    with reserved_port() as port:
        yield from _run_proxy(directory, port, ports)


def _run_proxy(directory: Path, port: int, ports: list[int]) -> Iterator[int]:
    servers = "".join(
        f"  server s{each} 127.0.0.1:{each} check inter 500 fall 3 rise 2\n" for each in ports
    )
    config = directory / "haproxy.cfg"
    config.write_text(
        # A busy host may answer a probe late; only a 503 says that it leaves.
        "defaults\n  mode http\n  timeout connect 2s\n  timeout check 10s\n  timeout client 600s\n"
        "  timeout server 600s\n  option redispatch 1\n  retries 3\n"
        f"frontend in\n  bind 127.0.0.1:{port}\n  default_backend out\n"
        "backend out\n  balance roundrobin\n  option httpchk GET /readyz\n"
        f"  http-response set-header X-Server %s\n{servers}"
    )
    process = subprocess.Popen(["haproxy", "-f", str(config), "-db"], stderr=subprocess.DEVNULL)
    try:
        await_ready(f"http://127.0.0.1:{port}/healthz")
        yield port
    finally:
        process.terminate()
        process.wait(30)
