"""Transactions that stay open are named in the log and in the metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from django.db import connection

from billing import open_transactions
from billing.open_transactions import (
    OpenTransactionCollector,
    OpenTransactions,
    find_open_transactions,
)
from tests.support.machine.logs import own_lines

WRITE = "INSERT INTO config_lease (name, until) VALUES ('left open', now())"
LOGGER = "billing.open_transactions"


@contextmanager
def session_after(statement: str, name: str = "psql of anna") -> Iterator[int]:
    """A session that executes a statement and leaves its transaction open; returns its pid."""
    session = connection.copy()
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("SELECT set_config('application_name', %s, false)", [name])
            session.commit()
            cursor.execute(statement)
            cursor.execute("SELECT pg_backend_pid()")
            [pid] = cursor.fetchone()
        yield pid
    finally:
        session.close()


def oldest() -> float:
    values = {
        sample.name: float(sample.value)
        for family in OpenTransactionCollector().collect()
        for sample in family.samples
    }
    return values["causeway_oldest_transaction_seconds"]


def test_a_transaction_that_has_written_is_found_until_it_ends(
    transactional_db: None, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    with session_after(WRITE) as pid:
        [found] = [each for each in find_open_transactions(0) if each.pid == pid]
        assert found.application == "psql of anna"
        assert found.state == "idle in transaction"
        assert oldest() >= found.seconds > 0
        assert all(each.pid != pid for each in find_open_transactions(3600))
    # PostgreSQL notices that a client has gone when its process is next run.
    eventually(lambda: all(each.pid != pid for each in find_open_transactions(0)))


def test_a_transaction_with_a_snapshot_is_found(transactional_db: None) -> None:
    with session_after("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ") as pid:
        assert any(each.pid == pid for each in find_open_transactions(0))


def test_a_transaction_that_only_read_keeps_nothing(transactional_db: None) -> None:
    with session_after("SELECT count(*) FROM config_lease") as pid:
        assert all(each.pid != pid for each in find_open_transactions(0))


def test_a_long_transaction_is_logged_once_a_minute(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(open_transactions, "time", SimpleNamespace(monotonic=lambda: now[0]))
    transactions = OpenTransactions()
    with session_after(WRITE) as pid, caplog.at_level(logging.WARNING, LOGGER):
        monkeypatch.setattr(open_transactions, "LONG_SECONDS", 3600.0)
        transactions.report()
        assert mentions(caplog, pid) == 0

        monkeypatch.setattr(open_transactions, "LONG_SECONDS", 0.0)
        transactions.report()
        now[0] += 59
        transactions.report()
        assert mentions(caplog, pid) == 1
        now[0] += 1
        transactions.report()
        assert mentions(caplog, pid) == 2
        assert f"SELECT pg_terminate_backend({pid}) ends it" in caplog.text
        assert "psql of anna of causeway" in caplog.text
        assert "idle in transaction" in caplog.text


def mentions(caplog: pytest.LogCaptureFixture, pid: int) -> int:
    return sum(f"pid {pid}," in line for line in own_lines(caplog))
