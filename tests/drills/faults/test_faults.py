"""A database that refuses statements: callers, log and metrics name it, and all recovers by itself.

The faults are those of one role, so that no other test notices them.
``python -m tests.drills.faults`` makes those of a whole server.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import pytest
import requests
from django.db import connection, transaction

from inference.models import Generation
from tests.support.bulkheads.counters import read_counter
from tests.support.database.snapshots import everything
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.processes import Served, environment, serve

KEYS = "/api/v1/keys"
FAILURES = "causeway_database_failures_total"
TRIES = 10
# What fails, the change of the role, whether admissions fail too, and the reason that is named.
FAULTS = {
    "read-only": ("SET default_transaction_read_only = on", True, "read_only"),
    "no connection": ("CONNECTION LIMIT 0", True, "connections"),
    "time limit": ("SET statement_timeout = '300ms'", False, "timeout"),
}


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture(scope="module")
def role(django_db_setup: None, django_db_blocker: object) -> Iterator[str]:
    """A role with the rights of the one that owns the tables, without being a superuser."""
    name = f"faulty_{secrets.token_hex(4)}"
    with django_db_blocker.unblock():  # type: ignore[attr-defined]
        execute(f"CREATE ROLE {name} LOGIN")
        execute(f'GRANT "{connection.get_connection_params()["user"]}" TO {name}')
        yield name
        end_sessions(name)
        execute(f"DROP ROLE {name}")


@pytest.fixture(scope="module")
def served(role: str, django_db_blocker: object) -> Iterator[Served]:
    parts = urlsplit(environment()["DATABASE_URL"])
    changed = parts._replace(netloc=f"{role}@{parts.netloc.rpartition('@')[2]}")
    with (
        django_db_blocker.unblock(),  # type: ignore[attr-defined]
        serve("--workers", "2", DATABASE_URL=urlunsplit(changed)) as running,
    ):
        yield running


def end_sessions(role: str) -> None:
    execute(
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{role}'"
    )


def create_key(site: Site) -> requests.Response:
    headers = {"Authorization": f"Bearer {site.tenant.management_key}"}
    return requests.post(
        f"{site.server}{KEYS}", json={"name": "written"}, headers=headers, timeout=30
    )


def assert_refused(answer: requests.Response) -> None:
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1"), answer.text
    assert answer.json()["error"]["message"] == (
        "The service is temporarily unavailable. Try again shortly."
    )


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_refused_named_once_and_over_by_itself(
    site: Site, served: Served, role: str, name: str
) -> None:
    change, stops_admissions, reason = FAULTS[name]
    site.server = served.address
    site.publish()
    site.eventually(lambda: site.chat().status_code == 200)
    site.eventually(lambda: create_key(site).status_code == 201)
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    begin = len(served.log)
    counted = read_counter(served.address, FAILURES)
    named = read_counter(served.address, FAILURES, reason=reason)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        execute(f"ALTER ROLE {role} {change}")
        stack.callback(restore, role)
        end_sessions(role)
        if not stops_admissions:
            # What the audit log takes too long to record, no admission needs.
            stack.enter_context(transaction.atomic())
            execute("LOCK TABLE config_auditentry IN EXCLUSIVE MODE")
        # A session that is being opened may have escaped, and each worker has several.
        site.eventually(lambda: create_key(site).status_code == 503)
        if stops_admissions:
            ready = f"{served.address}/readyz"
            site.eventually(
                lambda: {requests.get(ready, timeout=60).status_code for _ in range(8)} == {503}
            )
        before = everything()
        for _ in range(TRIES):
            assert_refused(create_key(site))
            if stops_admissions:
                assert_refused(site.chat())
        assert everything() == before
        assert read_counter(served.address, FAILURES) >= counted + TRIES
        assert read_counter(served.address, FAILURES, reason=reason) > named
        told = served.log[begin:]
        seconds = time.monotonic() - began
        # Each of two workers says it once, and again when it was quiet for 15 seconds or lasts.
        assert 1 <= told.count(f"no statements ({reason},") <= 2 + 2 * seconds / 15, told
        assert "Traceback" not in told
        assert "Service Unavailable" not in told
        # Slow statements have lines of their own, and a busy machine has many.
        others = [line for line in told.splitlines() if "batching.waits" not in line]
        assert len(others) < 20 + seconds / 3, told
    site.eventually(lambda: site.chat().status_code == 200)
    site.eventually(lambda: create_key(site).status_code == 201)
    site.eventually(lambda: requests.get(f"{served.address}/readyz", timeout=60).ok)
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert_in_order()


def restore(role: str) -> None:
    execute(f"ALTER ROLE {role} RESET ALL")
    execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
    end_sessions(role)
