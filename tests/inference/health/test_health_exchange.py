"""Workers share what has changed in the health of endpoints, and one of each host with others."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from django.db import connection
from django.db.models import Sum

from config import sql
from config.clocks.clock import clock
from config.sql import Statement
from inference.models import EndpointHealth
from inference.routing.health import MOST_SENT, AttemptOutcome, HealthState, HealthTable
from inference.routing.health import oldest_bucket as oldest
from inference.settlement.health_exchange import EXCHANGE_HEALTH, HealthExchange
from inference.store import DataPlaneConnection
from tests.support.inference.health import ONE, TWO

BUCKET = 200_000
NOW = BUCKET * 5.0


def send(cursor: Any, rows: Sequence[dict[str, Any]], upto: int) -> list[tuple[Any, ...]]:
    text = msgspec.json.encode(rows).decode()
    sql.execute(cursor, EXCHANGE_HEALTH, [text, oldest(NOW), upto])
    return cursor.fetchall()


def send_until_known(
    cursor: Any, upto: int, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    """Exchanges until nothing is new; a transaction of another test may keep rows new for long."""

    def is_known() -> bool:
        nonlocal upto
        found = send(cursor, [], upto)
        upto = found[0][7] if found else upto
        return not found

    eventually(is_known)


def row(endpoint_id: uuid.UUID, **fields: Any) -> dict[str, Any]:
    return {
        "endpoint_id": str(endpoint_id), "bucket": BUCKET, "successes": 1, "failures": 0,
        "latencies": [], "speeds": [], "retry_at": 0, **fields,
    }  # fmt: skip


def fail(table: HealthTable, subject: uuid.UUID) -> None:
    for _ in range(5):
        table.record(subject, AttemptOutcome.FAILURE, now=clock.time())


def is_open(table: HealthTable, subject: uuid.UUID) -> bool:
    return table.health(subject, clock.time()).state in (HealthState.OPEN, HealthState.HALF_OPEN)


class CountingConnection(DataPlaneConnection):
    """A connection that counts its statements."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    async def execute(
        self, query: Statement, parameters: Sequence[Any], organizations: Collection[uuid.UUID] = ()
    ) -> list[Sequence[Any]]:
        self.counts[query.name] += 1
        return await super().execute(query, parameters, organizations)


class Host:
    """The workers of one host, in one event loop."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir()
        self.connection = CountingConnection()
        self.tables = [HealthTable() for _ in range(count)]
        self.exchanges = [
            HealthExchange(table, self.connection, str(folder)) for table in self.tables
        ]

    async def turn(self) -> None:
        """Lets every worker exchange once that still runs."""
        for exchange in self.exchanges:
            await exchange.run_once()

    async def close(self) -> None:
        for exchange in self.exchanges:
            await exchange.close()
        await self.connection.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work()

    asyncio.run(limited())


async def until(condition: Callable[[], bool], *hosts: Host) -> None:
    while not condition():
        for host in hosts:
            await host.turn()
        await asyncio.sleep(0.02)


def test_an_exchange_returns_only_what_has_changed(db: None) -> None:
    with connection.cursor() as cursor:
        [(endpoint_id, *_, upto)] = send(cursor, [row(ONE)], 0)
        assert endpoint_id == ONE
    # A test is one transaction, so what it wrote counts as new until it ends.
    EndpointHealth.objects.filter(endpoint_id=ONE).update(slot=11)
    with connection.cursor() as cursor:
        assert [each[0] for each in send(cursor, [], upto)] == [ONE]
        assert send(cursor, [], upto + 1_000_000) == []


def test_what_another_transaction_commits_late_is_not_missed(
    transactional_db: None, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    parameters: Any = connection.get_connection_params()
    with psycopg.connect(**{**parameters, "autocommit": False}) as late:
        with late.cursor() as cursor:
            cursor.execute(
                "INSERT INTO inference_endpointhealth (endpoint_id, slot, bucket, successes, "
                "failures, latencies, speeds, retry_at) VALUES (%s, %s, %s, 0, 7, '{}', '{}', 0)",
                [ONE, BUCKET % 12, BUCKET],
            )
        with connection.cursor() as cursor:
            # Newer transactions than the open one have committed.
            [(_, *_, upto)] = send(cursor, [row(TWO)], 0)
            assert {each[0] for each in send(cursor, [], upto)} == {TWO}
            late.commit()
            assert {each[0] for each in send(cursor, [], upto)} == {ONE, TWO}
            send_until_known(cursor, upto, eventually)


def test_the_rows_that_have_changed_are_found_by_index(
    transactional_db: None, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    EndpointHealth.objects.bulk_create(
        EndpointHealth(
            endpoint_id=uuid.uuid4(), slot=BUCKET % 12, bucket=BUCKET, successes=1, failures=0,
            latencies=[], speeds=[], retry_at=0,
        )
        for _ in range(3000)
    )  # fmt: skip
    with connection.cursor() as cursor:
        upto = send(cursor, [], 0)[0][7]
        cursor.execute("ANALYZE inference_endpointhealth")
        send_until_known(cursor, upto, eventually)
        query = EXCHANGE_HEALTH.text
        for number, value in ((1, "'[]'"), (2, str(oldest(NOW))), (3, str(upto))):
            query = query.replace(f"${number}", value)
        # What the planner expects of so small a table depends on when it was analyzed.
        cursor.execute("SET enable_seqscan = off")
        try:
            cursor.execute(f"EXPLAIN {query}")
            plan = "\n".join(text for (text,) in cursor.fetchall())
        finally:
            cursor.execute("RESET enable_seqscan")
    assert "health_changed" in plan, plan


def test_one_statement_returns_a_bounded_number_of_rows_failures_first(db: None) -> None:
    healthy = [row(uuid.uuid4()) for _ in range(2500)]
    failing = row(ONE, failures=3)
    with connection.cursor() as cursor:
        for rows in (healthy[:1000], [failing], healthy[1000:]):
            send(cursor, rows, 0)
        found = send(cursor, [], 0)
    assert len(found) == 2000
    assert ONE in {each[0] for each in found}


def test_an_exchange_sends_a_bounded_number_of_buckets_failures_first() -> None:
    table, subjects = HealthTable(), [uuid.uuid4() for _ in range(MOST_SENT + 5)]
    for subject in subjects:
        table.record(subject, AttemptOutcome.SUCCESS, now=NOW)
    table.record(ONE, AttemptOutcome.FAILURE, now=NOW)
    first = table.outgoing()
    assert len(first) == MOST_SENT
    assert first[0].endpoint_id == ONE
    table.merge([], NOW)
    rest = table.outgoing()
    assert len(rest) == 6
    assert {each.endpoint_id for each in (*first, *rest)} == {ONE, *subjects}
    table.merge([], NOW)
    assert table.outgoing() == []


def test_steady_traffic_of_some_endpoints_holds_up_no_others() -> None:
    table, steady = HealthTable(), [uuid.uuid4() for _ in range(MOST_SENT)]
    for subject in steady:
        table.record(subject, AttemptOutcome.SUCCESS, now=NOW)
    table.record(ONE, AttemptOutcome.SUCCESS, now=NOW)
    sent = table.outgoing()
    # While the exchange is under way, all of them have traffic again.
    for subject in steady:
        table.record(subject, AttemptOutcome.SUCCESS, now=NOW)
    table.merge([], NOW)
    sent += table.outgoing()
    assert ONE in {each.endpoint_id for each in sent}
    assert len(sent) == 2 * MOST_SENT


def test_urgent_news_is_urgent_until_it_is_on_its_way() -> None:
    table = HealthTable()
    table.record(ONE, AttemptOutcome.SUCCESS, now=NOW)
    assert not table.is_urgent
    failing = [uuid.uuid4() for _ in range(MOST_SENT + 1)]
    for subject in failing:
        table.record(subject, AttemptOutcome.FAILURE, now=NOW)
    assert table.is_urgent
    table.outgoing()
    assert table.is_urgent
    table.merge([], NOW)
    assert [each.endpoint_id for each in table.outgoing()] == [failing[-1], ONE]
    assert not table.is_urgent
    table.record(ONE, AttemptOutcome.FAILURE, now=NOW)
    table.merge([], NOW)
    assert table.is_urgent


def test_the_workers_of_a_host_share_what_one_of_them_sees(
    transactional_db: None, tmp_path: Path
) -> None:
    async def work() -> None:
        host = Host(tmp_path / "host", 3)
        leader, follower, other = host.tables
        await host.turn()
        fail(follower, ONE)
        fail(leader, TWO)
        await until(lambda: all(is_open(table, ONE) for table in (leader, other)), host)
        await until(lambda: all(is_open(table, TWO) for table in (follower, other)), host)
        # Each outcome counts once, also for the worker that has seen it.
        await host.turn()
        for table in host.tables:
            known, _ = table.exchange([], 0, clock.time())
            assert sum(each.failures for each in known) == 10
        # What a follower has seen travels by the leader, perhaps an exchange later.
        await until(lambda: host.connection.counts["exchange_health"] > 4, host)
        await host.close()

    run(work)
    # A minute may have ended meanwhile, and each has rows of its own.
    found = EndpointHealth.objects.filter(endpoint_id__in=(ONE, TWO)).values("endpoint_id")
    sums = found.annotate(sum=Sum("failures")).values_list("endpoint_id", "sum")
    assert sorted(sums) == [(ONE, 5), (TWO, 5)]


def test_hosts_share_through_the_database(transactional_db: None, tmp_path: Path) -> None:
    async def work() -> None:
        here, there = Host(tmp_path / "here", 2), Host(tmp_path / "there", 2)
        await here.turn()
        await there.turn()
        fail(here.tables[1], ONE)
        await until(lambda: all(is_open(table, ONE) for table in there.tables), here, there)
        here.tables[0].pause(TWO, 30, now=clock.time())

        def is_paused(table: HealthTable) -> bool:
            return table.health(TWO, clock.time()).state is HealthState.RATE_LIMITED

        await until(lambda: is_paused(there.tables[1]), here, there)
        await here.close()
        await there.close()

    run(work)


def test_the_statements_of_a_host_do_not_grow_with_its_workers(
    transactional_db: None, tmp_path: Path
) -> None:
    async def count(workers: int) -> int:
        host = Host(tmp_path / str(workers), workers)
        for _ in range(6):
            await host.turn()
        await host.close()
        return host.connection.counts["exchange_health"]

    async def work() -> None:
        # All six turns take less than the leader's interval, or a little more on a busy machine.
        assert await count(2) <= 6
        assert await count(16) <= 6

    run(work)


def test_another_worker_leads_when_the_leader_has_ended(
    transactional_db: None, tmp_path: Path
) -> None:
    async def work() -> None:
        host = Host(tmp_path / "host", 3)
        await host.turn()
        await host.exchanges.pop(0).close()
        _, second, third = host.tables
        fail(third, ONE)
        await until(lambda: is_open(second, ONE), host)
        sent = host.connection.counts["exchange_health"]
        await until(lambda: host.connection.counts["exchange_health"] > sent, host)
        await host.close()

    run(work)
    found = EndpointHealth.objects.filter(endpoint_id__in=(ONE, TWO))
    assert list(found.values_list("endpoint_id", "failures")) == [(ONE, 5)]
