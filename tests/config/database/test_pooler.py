"""The service through PgBouncer in transaction mode: exact, quick, and back after a restart."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction

from accounts.models import Organization
from billing import ledger
from billing.models import Account, Transfer
from catalog.operations import Operation
from config.database.direct import DirectConnection, PoolerFound
from config.database.driver import Rejected
from config.database.functions import PREFIX
from config.database.outages import find_reason
from config.database.pooled import NoPooler, PooledConnection
from config.sql import Statement
from inference.models import Generation
from inference.requests import parsing
from tests.support import factories, processes
from tests.support.bulkheads.counters import read_metrics
from tests.support.bulkheads.kills import BEHAVIOUR, LEASE, PRICES, StreamsUnderFire
from tests.support.bulkheads.leases import end_leases, sweep
from tests.support.database.pooler import Pooler, needs_pgbouncer, run_pooler
from tests.support.factories import Tenant
from tests.support.inference.site import Site, content_of, events_of
from tests.support.ledger import assert_in_order
from tests.support.processes import manage, serve

pytestmark = needs_pgbouncer


def is_settled() -> bool:
    return not Generation.objects.filter(status="pending").exists()


def read_limits(site: Site) -> list[str]:
    metrics = read_metrics(site.server)
    return re.findall(r'causeway_pool_limit_connections\{pool="data_plane"\} (\S+)', metrics)


def test_answers_and_streams_are_settled_by_functions(
    pooled: Site, logged: Callable[[], str]
) -> None:
    plain = pooled.chat("one two")
    streamed = pooled.chat("three four", stream=True)
    assert plain.json()["choices"][0]["message"]["content"] == "You said: one two"
    assert content_of(events_of(streamed.text)) == "You said: three four"
    pooled.eventually(is_settled)
    assert Generation.objects.filter(status="completed").count() == 2
    assert_in_order()
    assert "planned each time" not in logged()
    # Each worker shows its pools every few seconds.
    pooled.eventually(lambda: read_limits(pooled) == ["8.0"])
    pooled.eventually(lambda: "notifications do not arrive" in logged())


def test_a_balance_pays_for_what_it_covers_among_fifty_requests_at_once(pooled: Site) -> None:
    model = factories.make_model("acme/held")
    price = factories.make_price("0.000001", "0.000001")
    factories.make_endpoint(
        provider=pooled.provider, model=model, price=price, upstream_model_id="sim-held"
    )
    body = {**pooled.chat_body(max_tokens=16), "model": model.slug}
    request = parsing.parse(Operation.CHAT, json.dumps(body).encode())
    poor = factories.make_tenant("Poor", credits_usd=0)
    hold = 1000 * (request.prompt_bound + 16)
    ledger.grant(poor.organization.pk, 20 * hold, actor="test")
    with ThreadPoolExecutor(50) as pool:
        asked = [pool.submit(pooled.post, body, key=poor.api_key) for _ in range(50)]
        pooled.eventually(lambda: len(pooled.dialled()) >= 20)
        pooled.eventually(lambda: sum(future.done() for future in asked) >= 30)
        assert Transfer.objects.pending().count() == 20
        pooled.upstream.release(20)
        statuses = Counter(future.result().status_code for future in asked)
    assert statuses == {200: 20, 402: 30}
    pooled.eventually(is_settled)
    assert_in_order()


def test_a_killed_worker_leaves_no_hold(site: Site, pooled_url: str) -> None:
    site.publish(BEHAVIOUR, price=factories.make_price(*PRICES))
    behind = {"DATABASE_URL": pooled_url, "HOLD_TIMEOUT": LEASE}
    with serve("--workers", "2", **behind) as served, StreamsUnderFire(site, served) as fire:
        for _ in range(2):
            fire.kill()
            assert_in_order()
    end_leases(LEASE, site.eventually)
    swept = manage("work", "--once", **behind)
    assert swept.returncode == 0, swept.stderr
    found = fire.examine()
    assert (found.open_holds, found.open_journals, found.charged_twice) == (0, 0, 0)
    assert found.wrong == []
    checked = manage("verify_ledger", DATABASE_URL=pooled_url)
    assert checked.returncode == 0, checked.stdout + checked.stderr


class Callers:
    """Callers who ask again and again from threads; keeps what each answer was."""

    def __init__(self, site: Site) -> None:
        self.answers: list[tuple[int, str | None]] = []
        self._site = site
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(number % 2 == 1,)) for number in range(8)
        ]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def count(self, status: int) -> int:
        return sum(found == status for found, _ in self.answers)

    def _ask(self, is_streamed: bool) -> None:
        body = self._site.chat_body("one two", stream=is_streamed)
        while not self._is_over.is_set():
            answer = self._site.post(body)
            assert "one" in answer.text or answer.status_code != 200
            self.answers.append((answer.status_code, answer.headers.get("Retry-After")))


def assert_accounted_for(site: Site, callers: Callers) -> None:
    """Each answer was charged once; what was refused after it was stored is freed."""
    assert {status for status, _ in callers.answers} <= {200, 503}
    assert all(wait for status, wait in callers.answers if status == 503)
    ended = Generation.objects.filter(status="completed")
    site.eventually(lambda: ended.count() >= callers.count(200))
    time.sleep(float(LEASE) + 0.5)
    sweep(LEASE)
    assert is_settled()
    assert ended.count() == callers.count(200)
    assert_in_order()


def test_a_pooler_that_restarts_under_load_costs_nobody_a_settlement(
    pooled: Site, pooler: Pooler
) -> None:
    with Callers(pooled) as callers:
        for _ in range(3):
            served = callers.count(200)
            pooled.eventually(lambda: callers.count(200) > served + 10)  # noqa: B023
            pooler.stop()
            refused = callers.count(503)
            pooled.eventually(lambda: callers.count(503) > refused)  # noqa: B023
            pooler.start()
        served = callers.count(200)
        pooled.eventually(lambda: callers.count(200) > served + 10)
    assert_accounted_for(pooled, callers)


def test_server_connections_that_end_under_load_cost_nobody_a_settlement(pooled: Site) -> None:
    with Callers(pooled) as callers:
        for _ in range(3):
            served = callers.count(200)
            pooled.eventually(lambda: callers.count(200) > served + 10)  # noqa: B023
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND application_name LIKE 'causeway%%' "
                    "AND pid <> pg_backend_pid()"
                )
        served = callers.count(200)
        pooled.eventually(lambda: callers.count(200) > served + 10)
    assert_accounted_for(pooled, callers)


def test_a_locked_row_is_waited_for_briefly_through_the_pooler(
    pooled: Site, neighbour: Tenant, is_served: Callable[[], bool]
) -> None:
    assert is_served()
    with transaction.atomic():
        Account.objects.select_for_update().get(
            organization=pooled.tenant.organization, kind="credits"
        )
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(pooled.chat)
            for _ in range(5):
                assert is_served()
            assert waiting.result(30).status_code == 503
    assert pooled.chat().status_code == 200
    pooled.eventually(is_settled)
    assert_in_order()


def test_migrating_through_a_pooler_leaves_no_setting_behind(
    pooled_url: str, transactional_db: None
) -> None:
    found = manage("migrate", DATABASE_URL=pooled_url)
    assert found.returncode == 0, found.stderr
    with psycopg.connect(pooled_url, autocommit=True) as session:
        assert session.execute("SHOW lock_timeout").fetchone() == ("0",)
        count = "SELECT count(*) FROM pg_proc WHERE starts_with(proname, %s)"
        assert session.execute(count, [PREFIX]).fetchone() > (20,)


def test_rows_are_read_one_after_another_outside_a_transaction(
    pooled: Site, pooled_url: str
) -> None:
    code = (
        "from accounts.models import Organization as O; from django.db import transaction\n"
        "print(len(list(O.objects.iterator())))\n"
        "with transaction.atomic(): print(len(list(O.objects.iterator())))\n"
    )
    found = manage("shell", "--no-imports", "-c", code, DATABASE_URL=pooled_url)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == [str(Organization.objects.count())] * 2


def given_of(url: str) -> dict[str, Any]:
    return dict(psycopg.conninfo.conninfo_to_dict(url))


@pytest.mark.parametrize("more", ["", "ignore_startup_parameters = options"])
def test_a_pooler_is_told_from_postgresql(db: None, more: str) -> None:
    direct = processes.environment()["DATABASE_URL"]

    async def test(url: str) -> None:
        with pytest.raises(PoolerFound):
            await DirectConnection.open(given_of(url))
        (await PooledConnection.open(given_of(url))).terminate()
        with pytest.raises(NoPooler):
            await PooledConnection.open(given_of(direct))
        (await DirectConnection.open(given_of(direct))).terminate()

    with run_pooler(os.environ["DATABASE_URL"], more) as pooler:
        asyncio.run(test(pooler.url(direct)))


def test_a_full_pooler_is_named_by_both_drivers(db: None) -> None:
    async def refuse(url: str) -> None:
        for opened in (DirectConnection, PooledConnection):
            with pytest.raises(OSError, match="max_client_conn") as refused:
                await opened.open(given_of(url))
            assert find_reason(refused.value) == "connections"

    # Otherwise it refuses the options of the first driver before it counts the clients.
    more = ("max_client_conn = 1", "ignore_startup_parameters = options")
    with run_pooler(os.environ["DATABASE_URL"], *more) as pooler:
        url = pooler.url(processes.environment()["DATABASE_URL"])
        with psycopg.connect(url):
            asyncio.run(refuse(url))


def test_both_drivers_return_the_same(pooled_url: str) -> None:
    statement = Statement(
        "values",
        "SELECT $1::text, $2::bigint, $3::uuid[], $4::bytea, $5::json, $6::timestamptz, "
        "$7::text[], $8::boolean, $9::float8, $10::uuid, NULL::int, 1.50::numeric",
    )
    some = UUID(int=7)
    values = [
        'a"b\\c', 2**40, [some], b"\x00\xff", '{"a": 1}', datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        ['x,"y\\', "", "NULL"], True, 0.1, some,
    ]  # fmt: skip

    async def test() -> None:
        found = []
        for opened, url in (
            (DirectConnection, processes.environment()["DATABASE_URL"]),
            (PooledConnection, pooled_url),
        ):
            driver = await opened.open(given_of(url))
            [row] = await driver.fetch(statement, values, 100)
            found.append(tuple(row))
            for text, error in (("SELECT 1/0", Rejected), ("SELECT nothing", Rejected)):
                with pytest.raises(error):
                    await driver.fetch(Statement("wrong", text), [], None)
            assert (await driver.fetch(Statement("one", "SELECT 1"), [], None))[0][0] == 1
            driver.terminate()
        assert found[0] == found[1]
        assert list(found[0][:10]) == values

    asyncio.run(test())
