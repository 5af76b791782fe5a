"""What PostgreSQL says when it takes no statements, and how often the log repeats it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import asyncpg
import psycopg
import pytest
from django.db import DatabaseError, connection, transaction
from django.db.utils import OperationalError
from psycopg_pool import PoolTimeout

from config.api.handler import from_framework
from config.database import outages as module
from config.database.direct import DirectConnection
from config.database.outages import Outages, PoolFilter, find_reason, is_away
from config.server.logs import UnavailableFilter
from tests.support.bulkheads.counters import sample
from tests.support.machine.logs import own_lines
from tests.support.machine.ports import reserved_port


def run(statement: str) -> DatabaseError:
    """Returns the ORM's error of a statement."""
    with (
        pytest.raises(DatabaseError) as caught,
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
    return caught.value


def raise_state(code: str) -> str:
    return f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{code}', MESSAGE = 'no'; END $$"


@pytest.fixture
def crowded_role(db: None) -> Iterator[str]:
    """A role that may have no connection."""
    name = f"crowded_{secrets.token_hex(4)}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {name} LOGIN CONNECTION LIMIT 0")
    connection.commit()
    yield name
    with connection.cursor() as cursor:
        cursor.execute(f"DROP ROLE {name}")


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SET LOCAL statement_timeout = 10; SELECT pg_sleep(5)", "timeout"),
        ("SET TRANSACTION READ ONLY; CREATE TABLE missing ()", "read_only"),
        (raise_state("53100"), "disk_full"),
        (raise_state("53200"), "out_of_memory"),
        (raise_state("55P03"), "lock"),
        (raise_state("57P03"), "stopped"),
        (raise_state("58030"), "input_output"),
    ],
)
def test_the_servers_code_gives_the_reason(
    transactional_db: None, statement: str, reason: str
) -> None:
    problem = run(statement)
    assert is_away(problem)
    assert find_reason(problem) == reason
    refusal = from_framework(problem)
    assert refusal is not None
    assert (refusal.status, refusal.headers) == (503, {"Retry-After": "1"})


def test_a_defect_of_ours_is_no_outage(transactional_db: None) -> None:
    for statement in ("SELECT 1 / 0", "SELECT missing", raise_state("25P02"), raise_state("XX000")):
        problem = run(statement)
        assert not is_away(problem)
        assert from_framework(problem) is None


def test_a_connection_that_is_refused_has_a_reason() -> None:
    with reserved_port() as port, pytest.raises(psycopg.OperationalError) as refused:
        psycopg.connect(f"host=127.0.0.1 port={port} dbname=missing connect_timeout=5")
    assert find_reason(refused.value) == "unreachable"
    assert find_reason(TimeoutError()) == "unreachable"


@pytest.mark.django_db(transaction=True)
def test_a_crowded_server_is_named_by_both_drivers(crowded_role: str) -> None:
    params = connection.get_connection_params()
    given = {name: params[name] for name in ("host", "port", "dbname") if params.get(name)}
    with pytest.raises(psycopg.OperationalError) as synchronous:
        psycopg.connect(**given, user=crowded_role)
    assert find_reason(synchronous.value) == "connections"

    async def connect() -> None:
        database = given.pop("dbname")
        await asyncpg.connect(**given, database=database, user=crowded_role)

    with pytest.raises(asyncpg.PostgresError) as asynchronous:
        asyncio.run(connect())
    assert find_reason(asynchronous.value) == "connections"
    # As the data plane passes it on.
    passed = OSError("a connection")
    passed.__cause__ = asynchronous.value
    assert find_reason(passed) == "connections"


@pytest.mark.django_db(transaction=True)
def test_servers_of_which_none_is_writable_are_an_outage() -> None:
    given = connection.get_connection_params()
    options = f"{given.get('options', '')} -c default_transaction_read_only=on".strip()
    given |= {"target_session_attrs": "read-write", "options": options}
    with pytest.raises(OSError, match="None of the hosts") as refused:
        asyncio.run(DirectConnection.open(given))
    assert find_reason(refused.value) == "read_only"


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the monotonic clock of the module."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def move(seconds: float) -> None:
        clock.now += seconds

    return move


def test_a_reason_is_logged_when_it_begins_each_minute_and_when_it_is_over(
    advance: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    outages = Outages()
    full = OperationalError("FATAL:  sorry, too many clients already\nand more")
    counted = sample("causeway_database_failures_total", reason="connections")
    for _ in range(1000):
        outages.report(full)
    [told] = own_lines(caplog)
    assert told == (
        "the database takes no statements (connections, 1 failed): FATAL:  sorry, too many clients "
        "already. All its connections are taken: look who has them in pg_stat_activity, or in the "
        "pooler's SHOW CLIENTS. Requests get 503 until it does: see docs/runbooks.md"
    )
    assert sample("causeway_database_failures_total", reason="connections") == counted + 1000
    # Another reason has a line of its own.
    outages.report(TimeoutError())
    assert "(unreachable, 1 failed): TimeoutError. Look whether" in own_lines(caplog)[1]
    for _ in range(70):
        advance(1)
        outages.report(full)
        outages.end_old()
    assert len(own_lines(caplog)) == 4
    assert own_lines(caplog)[2].endswith("again (unreachable): 1 failed in 0 s")
    assert "(connections, 1060 failed)" in own_lines(caplog)[3]
    advance(14)
    outages.end_old()
    assert len(own_lines(caplog)) == 4
    advance(2)
    outages.end_old()
    outages.end_old()
    assert own_lines(caplog)[4:] == [
        "the database takes statements again (connections): 1070 failed in 70 s"
    ]


def test_a_pool_without_a_connection_blames_no_statement(caplog: pytest.LogCaptureFixture) -> None:
    """It may as well be that none opens."""
    Outages().report(PoolTimeout("couldn't get a connection after 1.50 sec"))
    [told] = own_lines(caplog)
    assert told == (
        "the database takes no statements (pool, 1 failed): couldn't get a connection after 1.50 "
        "sec. None of this process's connections (DATABASE_POOL_SIZE, "
        "DATABASE_DATA_PLANE_CONNECTIONS) became free: look for another reason beside it. Requests "
        "get 503 until it does: see docs/runbooks.md"
    )


@pytest.mark.django_db(transaction=True)
def test_what_the_pool_says_of_each_connection_is_not_logged() -> None:
    counted = sample("causeway_database_failures_total", reason="connections")
    refused = psycopg.OperationalError("sorry, too many clients already")
    assert not keeps("error connecting in %r: %s", "pool-1", refused)
    assert sample("causeway_database_failures_total", reason="connections") == counted + 1
    with psycopg.connect(**connection.get_connection_params()) as session:
        assert keeps("rolling back returned connection: %s", session)
    assert not keeps("discarding closed connection: %s", session)
    assert not keeps("reconnection attempt in pool %r failed after %s sec", "pool-1", 2)
    assert keeps("waiting for pool %r initialization", "pool-1")


def keeps(text: str, *arguments: object) -> bool:
    """Returns whether a line of psycopg's pool is logged."""
    return bool(PoolFilter().filter(logging.makeLogRecord({"msg": text, "args": arguments})))


def test_responses_with_503_are_not_logged_one_by_one() -> None:
    record = logging.makeLogRecord({"name": "django.request", "status_code": 503})
    assert not UnavailableFilter().filter(record)
    record.status_code = 500
    assert UnavailableFilter().filter(record)
    # A test that configured the logs once more has installed another one.
    installed = [
        each for each in logging.getLogger("django.request").filters
        if isinstance(each, UnavailableFilter)
    ]  # fmt: skip
    assert installed
    assert not installed[0].filter(logging.makeLogRecord({"status_code": 503}))
