"""Connections of the control plane wait neither for a standby nor for a pooler without a server."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction
from django.db.utils import OperationalError
from psycopg.sql import SQL, Identifier

from config.api.errors import OutcomeUnknown, Unavailable
from config.api.handler import from_framework
from config.database import patience
from config.database.outages import find_reason, outages
from config.database.patience import COMMIT_SECONDS, OPEN_SECONDS, CommitUnknown, PatientConnection
from config.database.postgresql import base
from config.local import postgres
from tests.support.clusters.programs import descendants, send_signal
from tests.support.database.pooler import needs_pgbouncer, run_pooler
from tests.support.machine.waiting import wait_until


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a server that is busy with other tests end what was cancelled, and answer others."""
    monkeypatch.setattr(patience, "_CANCEL_SECONDS", 30.0)
    monkeypatch.setattr(outages, "is_silent", False)


@contextmanager
def run_server() -> Iterator[tuple[str, Path]]:
    """Runs a server with a table, and yields its URL and its directory."""
    with tempfile.TemporaryDirectory(prefix="causeway-wait-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o711)
        url = postgres.ensure_running(directory)
        with psycopg.connect(url, autocommit=True) as session:
            session.execute("CREATE TABLE kept (number int)")
        try:
            yield url, directory
        finally:
            postgres.stop(directory)


@pytest.fixture(scope="module")
def waiting() -> Iterator[str]:
    """Yields the URL of a server whose commits wait for a standby that does not exist."""
    with run_server() as (url, _):
        with psycopg.connect(url, autocommit=True) as session:
            session.execute("ALTER SYSTEM SET synchronous_commit = 'on'")
            session.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
            session.execute("SELECT pg_reload_conf()")
        yield url


def numbers(url: str) -> list[int]:
    with psycopg.connect(url) as session:
        return [number for (number,) in session.execute("SELECT number FROM kept")]


@pytest.fixture
def wrapper(db: None, waiting: str) -> Iterator[Any]:
    """Yields a connection of Django to that server, as requests have them."""
    session = connection.copy()
    given = psycopg.conninfo.conninfo_to_dict(waiting)
    session.settings_dict = {
        **session.settings_dict,
        "NAME": given["dbname"],
        "USER": given.get("user", ""),
        "HOST": given.get("host", ""),
        "PORT": given.get("port", ""),
        "OPTIONS": {},
    }
    parameters = session.get_connection_params()
    session.connect = lambda: None
    session.connection = PatientConnection.connect(**parameters, autocommit=True)
    session.in_atomic_block, session.autocommit = False, True
    connections["patient"] = session
    try:
        yield session
    finally:
        if session.connection is not None:
            session.connection.close()
        del connections["patient"]


def test_a_commit_that_waits_for_a_standby_has_an_unknown_outcome(waiting: str) -> None:
    with PatientConnection.connect(waiting) as session:
        session.execute("DELETE FROM kept")
        session.execute("INSERT INTO kept VALUES (1)")
        with pytest.raises(CommitUnknown) as caught:
            session.commit()
        # It is stored on this server, and the connection goes on.
        assert numbers(waiting) == [1]
        assert session.execute("SELECT 2").fetchone() == (2,)
        session.rollback()
    assert find_reason(caught.value) == "standby"


def test_the_answer_says_that_the_outcome_is_unknown(waiting: str, wrapper: Any) -> None:
    with psycopg.connect(waiting, options="-c synchronous_commit=off") as session:
        session.execute("DELETE FROM kept")
    with (
        pytest.raises(OperationalError) as caught,
        transaction.atomic(using="patient"),
        wrapper.cursor() as cursor,
    ):
        cursor.execute("INSERT INTO kept VALUES (3)")
    answer = from_framework(caught.value)
    assert isinstance(answer, OutcomeUnknown)
    assert (answer.status, answer.headers) == (503, {"Retry-After": "1"})
    assert numbers(waiting) == [3]
    # A statement without a transaction commits too.
    for number, statement in (
        (4, "UPDATE kept SET number = 4"),
        (5, "WITH one AS (\nSELECT 5 AS n) UPDATE kept SET number = n FROM one"),
    ):
        with pytest.raises(OperationalError) as caught, wrapper.cursor() as cursor:
            cursor.execute(statement)
        assert isinstance(from_framework(caught.value), OutcomeUnknown)
        assert numbers(waiting) == [number]


def test_a_statement_may_be_composed(waiting: str, wrapper: Any) -> None:
    table = Identifier("kept")
    with psycopg.connect(waiting, options="-c synchronous_commit=off") as session:
        session.execute("DELETE FROM kept")
        session.execute("INSERT INTO kept VALUES (5)")
    with wrapper.cursor() as cursor:
        cursor.execute(SQL("SELECT number FROM {}").format(table))
        assert cursor.fetchall() == [(5,)]
    with pytest.raises(OperationalError) as caught, wrapper.cursor() as cursor:
        cursor.execute(SQL("UPDATE {} SET number = 6").format(table))
    assert isinstance(from_framework(caught.value), OutcomeUnknown)
    assert numbers(waiting) == [6]


def test_a_statement_does_not_wait_for_the_locks_of_a_commit_that_waits(
    waiting: str, wrapper: Any
) -> None:
    with psycopg.connect(waiting, options="-c synchronous_commit=off") as session:
        session.execute("DELETE FROM kept")
        session.execute("INSERT INTO kept VALUES (7)")
        session.commit()
        session.execute("UPDATE kept SET number = 8")
        with (
            pytest.raises(OperationalError) as caught,
            transaction.atomic(using="patient"),
            wrapper.cursor() as cursor,
        ):
            cursor.execute("SELECT number FROM kept FOR UPDATE")
        session.rollback()
    # Nothing was stored, and the connection goes on.
    answer = from_framework(caught.value)
    assert type(answer) is Unavailable
    assert find_reason(caught.value) == "lock"
    assert numbers(waiting) == [7]
    with wrapper.cursor() as cursor:
        cursor.execute("SELECT number FROM kept")
        assert cursor.fetchall() == [(7,)]


def test_a_statement_may_work_longer(waiting: str, wrapper: Any) -> None:
    with PatientConnection.connect(waiting, autocommit=True) as session:
        assert session.execute("SELECT 5 FROM pg_sleep(1.5)").fetchone() == (5,)
    with psycopg.connect(waiting, options="-c synchronous_commit=off") as session:
        session.execute("DELETE FROM kept")
    with transaction.atomic(using="patient"), wrapper.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")
        cursor.execute("INSERT INTO kept SELECT 9 FROM pg_sleep(1.5)")
    assert numbers(waiting) == [9]


def test_a_file_waits_for_locks_and_for_its_commit(
    waiting: str, wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constraints of many rows are checked when they are committed."""
    monkeypatch.setattr(patience, "default_connection", wrapper)
    with psycopg.connect(waiting, options="-c synchronous_commit=off", autocommit=True) as session:
        session.execute("DROP TABLE IF EXISTS checked")
        session.execute("CREATE TABLE checked (number int)")
        session.execute(
            "CREATE OR REPLACE FUNCTION work() RETURNS trigger LANGUAGE plpgsql "
            "AS 'BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END'"
        )
        session.execute(
            "CREATE CONSTRAINT TRIGGER work AFTER INSERT ON checked "
            "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION work()"
        )

    def apply(is_file: bool) -> None:
        with transaction.atomic(using="patient"), wrapper.cursor() as cursor:
            if is_file:
                patience.take_time()
            cursor.execute("SET LOCAL synchronous_commit = off")
            cursor.execute("SHOW lock_timeout")
            assert cursor.fetchone() == ("0" if is_file else "1200ms",)
            cursor.execute("INSERT INTO checked VALUES (1)")

    apply(True)
    # It is the only one without a limit. The server says that it has changed nothing.
    with pytest.raises(OperationalError) as caught:
        apply(False)
    assert type(from_framework(caught.value)) is Unavailable
    with psycopg.connect(waiting) as session:
        assert session.execute("SELECT number FROM checked").fetchall() == [(1,)]


def test_a_commit_that_the_server_refuses_has_changed_nothing(waiting: str) -> None:
    with PatientConnection.connect(waiting) as session:
        session.execute("CREATE TEMPORARY TABLE one (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        session.execute("INSERT INTO one VALUES (1), (1)")
        with pytest.raises(psycopg.errors.UniqueViolation):
            session.commit()


@pytest.mark.parametrize("seconds", [COMMIT_SECONDS, None])
def test_a_server_that_ends_a_commit_leaves_its_outcome_unknown(
    waiting: str, seconds: float | None
) -> None:
    """That of a file waits without a limit."""
    with PatientConnection.connect(waiting) as session:
        session.execute("INSERT INTO kept VALUES (6)")
        session.commit_seconds = seconds
        pid = session.info.backend_pid

        def end() -> None:
            with psycopg.connect(waiting, autocommit=True) as other:
                found = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s "
                while not other.execute(found + "AND wait_event = 'SyncRep'", [pid]).fetchone():
                    pass

        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises(CommitUnknown):
            session.commit()
        ending.join()


@contextmanager
def hanging(session: Any) -> Iterator[None]:
    """Stops all processes of a session's server, as a machine that hangs does."""
    with session.cursor() as cursor:
        cursor.execute("SHOW data_directory")
        [directory] = cursor.fetchone()
    server = descendants(int(Path(directory, "postmaster.pid").read_text().split()[0]))
    send_signal(server, signal.SIGSTOP)
    try:
        yield
    finally:
        send_signal(server, signal.SIGCONT)


def test_nothing_waits_for_a_server_that_hangs(
    waiting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection waits for a statement, one for its commit, and one is checked."""
    with psycopg.connect(waiting, options="-c synchronous_commit=off") as session:
        session.execute("DELETE FROM kept")
    reading, checked = (PatientConnection.connect(waiting, autocommit=True) for _ in range(2))
    writing = PatientConnection.connect(waiting)
    writing.execute("INSERT INTO kept VALUES (1)")
    with hanging(reading):
        with pytest.raises(psycopg.OperationalError, match="does not answer"):
            reading.execute("SELECT 1")
        assert outages.is_silent
        monkeypatch.setattr(patience, "_CANCEL_SECONDS", 0.2)
        with pytest.raises(CommitUnknown):
            writing.commit()
        assert not checked.answers()
    assert (reading.closed, writing.closed, checked.closed) == (True, True, True)


def make_pooled(wrapper: Any, kind: type[PatientConnection], **changes: Any) -> Any:
    """Returns a connection of Django that borrows from a pool of two."""
    options = {"max_size": 2, "min_size": 0, "timeout": OPEN_SECONDS, "reconnect_timeout": 2}
    settings = {
        **wrapper.settings_dict,
        **changes,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"pool": {**options, "connection_class": kind}},
    }
    return type(wrapper)(settings, alias=f"patient_pool_{kind.__name__}")


def test_a_request_gets_no_connection_to_a_server_that_hangs(waiting: str, wrapper: Any) -> None:
    pooled = make_pooled(wrapper, PatientConnection)

    def connects() -> bool:
        try:
            pooled.ensure_connection()
        except OperationalError:
            return False
        return True

    try:
        pooled.ensure_connection()
        pid = pooled.connection.info.backend_pid
        pooled.close()
        with hanging(wrapper.connection):
            assert not connects()
            assert outages.is_silent
        wait_until(connects)
        assert not outages.is_silent
        assert pooled.connection.info.backend_pid != pid
    finally:
        pooled.close()
        pooled.close_pool()


def test_a_transaction_that_lost_its_connection_opens_no_other(wrapper: Any) -> None:
    with (
        pytest.raises(OperationalError),
        transaction.atomic(using="patient"),
        wrapper.cursor() as cursor,
    ):
        wrapper.connection.pgconn.finish()
        cursor.execute("SELECT 1")
    assert wrapper.connection is None


@needs_pgbouncer
def test_a_check_does_not_wait_for_the_server_of_a_pooler() -> None:
    with run_server() as (url, directory), run_pooler(url) as pooler:
        session = PatientConnection.connect(pooler.url(url), autocommit=True)
        assert session.answers()
        postgres.stop(directory)
        assert not session.answers()
        assert session.closed


class AskedConnection(PatientConnection):
    asked = 0

    def answers(self, *args: Any) -> bool:
        AskedConnection.asked += 1
        return super().answers(*args)


@needs_pgbouncer
def test_a_pooler_without_a_server_is_asked_with_pauses(
    wrapper: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens every connection at once, and then ends it."""
    now = 0.0

    def read() -> float:
        nonlocal now
        now += 1
        return now

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=read, sleep=pause))
    monkeypatch.setattr(base, "OPEN_SECONDS", 300.0)
    monkeypatch.setattr(base, "_PAUSE_SECONDS", 100.0)
    with run_server() as (url, directory), run_pooler(url) as pooler:
        given = psycopg.conninfo.conninfo_to_dict(pooler.url(url))
        changes = {"NAME": given["dbname"], "USER": given["user"]}
        changes |= {"HOST": given["host"], "PORT": given["port"]}
        pooled = make_pooled(wrapper, AskedConnection, **changes)
        try:
            pooled.ensure_connection()
            pooled.close()
            postgres.stop(directory)
            AskedConnection.asked = 0
            with pytest.raises(OperationalError, match="does not answer"):
                pooled.ensure_connection()
            # Two that the pool may have kept, the second after a pause, and two more.
            assert AskedConnection.asked == 4
        finally:
            pooled.close()
            pooled.close_pool()
