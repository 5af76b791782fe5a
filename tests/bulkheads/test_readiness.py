"""`/readyz` turns 503 while a worker can admit nothing, and 200 when it can again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import requests
from django.db import connection, transaction

from billing.models import Account
from inference.models import Generation
from tests.support.bulkheads.counters import read_counter
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order, assert_settled_in_order
from tests.support.processes import Served, serve


@pytest.fixture
def host(site: Site, running_service: Served) -> Site:
    """The service with two workers."""
    return replace(site, server=running_service.address)


def ask(host: Site) -> list[tuple[int, str | None]]:
    """Returns the status and the reason of several answers, by both workers."""
    answers = [requests.get(f"{host.server}/readyz", timeout=60) for _ in range(12)]
    return [(answer.status_code, answer.json().get("reason")) for answer in answers]


@contextmanager
def without_generations() -> Iterator[None]:
    """Renames the table of generations: admissions fail, and heartbeats do not."""
    table = Generation._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO missing")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE missing RENAME TO {table}")


def test_readyz_is_503_while_admissions_fail(
    host: Site, logged: Callable[[str], list[str]]
) -> None:
    host.publish()
    assert host.chat().status_code == 200
    host.settled()
    with without_generations():
        # No request comes: each worker finds out by itself, after a few quiet seconds.
        host.eventually(lambda: set(ask(host)) == {(503, "admissions")})
        assert requests.get(f"{host.server}/healthz", timeout=60).status_code == 200
        assert host.chat().status_code == 409
        told = "admissions fail: /readyz answers 503 until one succeeds"
        host.eventually(lambda: len(logged(told)) == 2)
    assert logged("the probe of admissions failed: Rejected")
    # Without a request too.
    host.eventually(lambda: set(ask(host)) == {(200, None)})
    host.eventually(lambda: len(logged("admissions succeed again")) == 2)
    assert host.chat().status_code == 200
    assert len(host.dialled()) == 2
    host.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert Generation.objects.count() == 2
    assert_in_order()


def test_a_locked_organization_does_not_make_its_workers_unready(
    host: Site, neighbours: list[Tenant]
) -> None:
    host.publish()
    with transaction.atomic():
        Account.objects.select_for_update().get(
            organization=host.tenant.organization, kind=Account.Kind.CREDITS
        )
        refused = host.chat()
        assert refused.status_code == 503
        assert set(ask(host)) == {(200, None)}
        assert host.post(host.chat_body(), key=neighbours[0].api_key).status_code == 200
    assert len(host.dialled()) == 1
    assert_settled_in_order()


def test_probes_leave_nothing_behind(
    site: Site, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    # Counters follow seconds later, so those of a shared service may still count earlier requests.
    with serve("--workers", "2") as fresh:
        host = replace(site, server=fresh.address)
        eventually(lambda: set(ask(host)) == {(200, None)})
        host.assert_nothing_happened()
        assert read_counter(host.server, "causeway_generations_total") == 0
