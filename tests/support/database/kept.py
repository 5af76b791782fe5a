"""A migrated cluster that is kept between runs, so that one test starts in three seconds."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg

from config.local import postgres
from config.local.bootstrap import PROJECT

NAME: Final = "migrated"
"""The migrated database of the cluster, which nobody may connect to: the tests' are its copies."""
MONTH: Final = "CAUSEWAY_TEST_MONTH"
"""The variable with the month in which the run began; the cluster is that month's to its end."""

_PACKAGES: Final = (
    "accounts", "billing", "catalog", "config", "endpoints", "endusers", "inference",
)  # fmt: skip
# What migrations, permissions, roles, triggers, functions and partitions are made from.
_PARTS: Final = {"migrations", "models", "sql", "triggers", "partitions"}
_STEMS: Final = {"apps", "functions", "migrate", "models", "roles", "triggers"}
_MOST_KEPT: Final = 12


def find_cluster() -> Path:
    """Returns the data directory of a stopped cluster that holds the migrated database.

    Makes it if this tree's migrations have none yet, which takes half a minute.
    """
    shelf = _find_shelf()
    shelf.mkdir(mode=0o711, parents=True, exist_ok=True)
    # A directory that another account made could hold a server of its own.
    if shelf.stat().st_uid != os.getuid():
        raise SystemExit(f"{shelf} belongs to somebody else: remove it.")
    kept = shelf / _make_key()
    with (shelf / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (kept / "finished").exists():
            _remove(kept)
            _make(kept)
            (kept / "finished").touch()
        os.utime(kept)
        for old in sorted(shelf.glob("*/"), key=lambda path: -path.stat().st_mtime)[_MOST_KEPT:]:
            _remove(old)
    return kept


def _find_shelf() -> Path:
    # PostgreSQL runs as another account there, which cannot enter root's home.
    if os.getuid() == 0:
        return Path("/var/cache/causeway-tests")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "causeway-tests"


def _make_key() -> str:
    digest = hashlib.sha256()
    # The partitions of this month and of two later ones are made.
    digest.update(os.environ[MONTH].encode())
    for path in _find_sources():
        digest.update(f"{path.relative_to(PROJECT)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:24]


def _find_sources() -> Iterator[Path]:
    yield PROJECT / "uv.lock"
    for package in _PACKAGES:
        for path in sorted((PROJECT / package).rglob("*")):
            is_source = path.suffix in {".py", ".sql", ".json"} and path.is_file()
            parts = path.relative_to(PROJECT).parts
            if is_source and (_PARTS & set(parts) or path.stem in _STEMS):
                yield path


def _make(kept: Path) -> None:
    sys.stderr.write("Migrating the database of the tests; it is kept for the next runs.\n")
    kept.mkdir(mode=0o711)
    kept.chmod(0o711)
    # A process of its own is the cluster's only user, so the server stops with it.
    subprocess.run([sys.executable, "-m", __name__, str(kept)], cwd=PROJECT, check=True)
    postgres.stop(kept)


def _remove(kept: Path) -> None:
    if kept.exists():
        with contextlib.suppress(postgres.PostgresError):
            postgres.stop(kept)
        shutil.rmtree(kept)


def _fill(kept: Path) -> None:
    """Makes the migrated database of a new cluster and closes it to everybody."""
    url = postgres.ensure_running(kept, durable=False)
    own = url.replace(f"/{postgres.DATABASE}?", f"/{NAME}?")
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(f"CREATE DATABASE {NAME}")
        subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), "migrate", "--verbosity", "0"],
            env={**os.environ, "DATABASE_URL": own, "LOG_LEVEL": "WARNING"},
            check=True,
            timeout=600,
        )
        # A database that somebody is connected to, autovacuum for instance, cannot be copied.
        server.execute(f"ALTER DATABASE {NAME} ALLOW_CONNECTIONS false")
    os.sync()


if __name__ == "__main__":
    _fill(Path(sys.argv[1]))
