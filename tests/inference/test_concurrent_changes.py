"""Admission and settlement keep what others commit between their snapshot and their locks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.utils import CursorWrapper

from billing import ledger
from billing.models import Account, Meter, Transfer
from catalog.models import CatalogVersion
from config import sql
from config.database.opening import open_connection
from config.sql import Statement
from inference.admission.admit import ADMIT, GenerationRow
from inference.ids import id_range
from inference.models import Generation
from inference.settlement.settle import SETTLE, Settlement, settlement_parameters
from tests.support import factories
from tests.support.database.locks import waiting
from tests.support.factories import Tenant
from tests.support.ledger import assert_in_order

Wait = Callable[[Callable[[], bool]], None]

COPIED = (
    "workspace_id", "api_key_id", "operation", "model", "model_endpoint_id", "provider_name",
    "price_id",
)  # fmt: skip
UNSTATED = (
    "member_id", "end_user", "session_id", "trace", "preset_id", "http_referer", "app_title",
    "user_agent", "private_endpoint_id", "attestation_id", "limit_subjects", "units",
    "key_expires_at",
)  # fmt: skip


@pytest.fixture
def tenants(transactional_db: None) -> list[Tenant]:
    return [factories.make_tenant(name) for name in ("a", "b", "c")]


@contextmanager
def uncommitted() -> Iterator[CursorWrapper]:
    """A session with an open transaction, which commits at the end."""
    session = connection.copy()
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            yield cursor
        session.commit()
    finally:
        session.close()


def make_pending(tenant: Tenant, hold: int = 100) -> Generation:
    row = factories.make_generation(tenant, status="pending")
    factories.place_hold(row, hold)
    return row


def make_row(pending: Generation, identity: str, hold: int = 70) -> GenerationRow:
    """Returns the row of an admission like a generation."""
    organization = pending.organization
    organization.refresh_from_db()
    accounts = {each.kind: each.pk for each in Account.objects.filter(organization=organization)}
    version = CatalogVersion.objects.first()
    return GenerationRow(
        id=identity,
        organization_id=organization.pk,
        region="global",
        streamed=False,
        is_byok=False,
        request_id="request",
        hold_nano=hold,
        upstream_hold_nano=0,
        held_tokens=9,
        images=0,
        credits_id=accounts["credits"],
        usage_id=accounts["usage"],
        **{name: getattr(pending, name) for name in COPIED},
        **dict.fromkeys(UNSTATED),
        routing_version=organization.routing_version,
        catalog_version=0 if version is None else version.version,
    )


def settle(cursor: CursorWrapper, *rows: Generation, cost: int = 40) -> int:
    found = [Settlement(row.pk, "completed", cost_nano=cost) for row in rows]
    sql.execute(cursor, SETTLE, settlement_parameters(found))
    return len(cursor.fetchall())


def admit(cursor: CursorWrapper, *rows: GenerationRow, shown: Any = ()) -> list[Any]:
    """Returns the ids that were stored, and the meters, without the times of the rows."""
    ids = id_range([row.id for row in rows])
    sql.execute(cursor, ADMIT, [msgspec.json.encode(rows).decode(), "[]", list(shown), *ids])
    return [row[:2] for row in cursor.fetchall()]


def run_beside(
    change: Callable[[CursorWrapper], Any], call: Callable[[CursorWrapper], Any], wait: Wait
) -> Any:
    """Calls with the rows locked by ``change``, which commits meanwhile; returns the result."""

    def run() -> Any:
        try:
            with connection.cursor() as cursor:
                return call(cursor)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with uncommitted() as cursor:
            change(cursor)
            pending = pool.submit(run)
            wait(lambda: waiting() == 1)
        return pending.result(30)


def sums(tenant: Tenant) -> tuple[int, ...]:
    """Returns held and posted amounts of an organization, and those of its key."""
    accounts = Account.objects.filter(organization=tenant.organization)
    balance, usage = accounts.get(kind="credits"), accounts.get(kind="usage")
    key = tenant.organization.api_keys.get(is_management=False)
    meter = Meter.objects.get(subject_id=key.pk)
    return (
        balance.pending_debits, balance.posted_debits, usage.posted_credits,
        meter.held_cost, meter.cost,
    )  # fmt: skip


def test_a_settlement_keeps_the_settlement_that_it_waited_for(
    tenants: list[Tenant], eventually: Wait
) -> None:
    first, second = ([make_pending(each) for each in tenants] for _ in range(2))

    settled = run_beside(
        lambda cursor: settle(cursor, *first),
        lambda cursor: settle(cursor, *second, cost=50),
        eventually,
    )

    assert settled == 3
    assert [sums(each) for each in tenants] == [(0, 90, 90, 0, 90)] * 3
    assert_in_order()


def test_a_settlement_keeps_all_versions_of_one_transaction(
    tenants: list[Tenant], eventually: Wait
) -> None:
    # More versions than a page has room for, so the newest one is in another page.
    several = [make_pending(tenants[0]) for _ in range(150)]
    last = make_pending(tenants[0])

    run_beside(
        lambda cursor: [settle(cursor, each) for each in several],
        lambda cursor: settle(cursor, last),
        eventually,
    )

    assert sums(tenants[0]) == (0, 151 * 40, 151 * 40, 0, 151 * 40)
    assert_in_order()


def test_an_admission_keeps_the_settlement_that_it_waited_for(
    tenants: list[Tenant], eventually: Wait
) -> None:
    pending = [make_pending(each) for each in tenants]
    rows = [make_row(each, f"gen-{number}") for number, each in enumerate(pending)]
    keys = [each.api_key_id for each in rows]

    stored = run_beside(
        lambda cursor: settle(cursor, *pending),
        lambda cursor: admit(cursor, *rows, shown=keys[:1]),
        eventually,
    )

    assert {row[0] for row in stored} == {"gen-0", "gen-1", "gen-2", None}
    [meter] = [row[1] for row in stored if row[1] is not None]
    assert meter[1] == str(keys[0])
    # The total cost, the held cost, and the requests of the factory and of the admission.
    assert (meter[6], meter[11], meter[13]) == (40, 70, 2)
    assert [sums(each) for each in tenants] == [(70, 40, 40, 70, 40)] * 3


def test_a_settlement_keeps_the_admission_that_it_waited_for(
    tenants: list[Tenant], eventually: Wait
) -> None:
    pending = [make_pending(each) for each in tenants]
    rows = [make_row(each, f"gen-{number}") for number, each in enumerate(pending)]

    run_beside(
        lambda cursor: admit(cursor, *rows), lambda cursor: settle(cursor, *pending), eventually
    )

    assert [sums(each) for each in tenants] == [(70, 40, 40, 70, 40)] * 3


def test_an_admission_sees_the_balance_that_it_waited_for(
    tenants: list[Tenant], eventually: Wait
) -> None:
    pending = make_pending(tenants[0])
    available = Account.objects.get(organization=pending.organization, kind="credits").available
    small = make_row(pending, "gen-small", hold=available - 30)
    large = make_row(pending, "gen-large", hold=available - 29)

    def spend(cursor: CursorWrapper) -> None:
        admit(cursor, make_row(pending, "gen-first", hold=30))

    assert run_beside(spend, lambda cursor: admit(cursor, large), eventually) == []
    with connection.cursor() as cursor:
        assert admit(cursor, small) == [("gen-small", None)]
    assert Account.objects.get(organization=pending.organization, kind="credits").available == 0


def test_an_admission_uses_the_payment_that_it_waited_for(
    transactional_db: None, eventually: Wait
) -> None:
    tenant = factories.make_tenant(credits_usd=0)
    row = make_row(factories.make_generation(tenant, status="pending"), "gen-paid", hold=70)

    def pay(cursor: CursorWrapper) -> None:
        cursor.execute(
            "UPDATE billing_account SET posted_credits = posted_credits + 70 "
            "WHERE organization_id = %s AND kind = 'credits'",
            [tenant.organization.pk],
        )

    assert run_beside(pay, lambda cursor: admit(cursor, row), eventually) == [("gen-paid", None)]


@pytest.mark.parametrize(
    "call",
    [
        "causeway_hold_accounts_1(%s::tid[], '{1}')",
        "causeway_settle_accounts_1(%s::tid[], '{0}', '{1}', '{1}')",
    ],
)
def test_a_change_of_an_account_refuses_an_old_address(tenants: list[Tenant], call: str) -> None:
    accounts = Account.objects.filter(organization=tenants[0].organization, kind="credits")
    assert_refuses_an_old_address("billing_account", accounts.order_by(), call)


@pytest.mark.parametrize(
    "call",
    [
        "causeway_hold_meters_1(%s::tid[], '{1}', '{1}', '{1}', '{1}')",
        "causeway_settle_meters_1(%s::tid[], '{1}', '{1}', '{0}', '{0}', '{1}', '{0}', '{0}')",
    ],
)
def test_a_change_of_a_meter_refuses_an_old_address(tenants: list[Tenant], call: str) -> None:
    key = tenants[0].organization.api_keys.get(is_management=False)
    assert_refuses_an_old_address("billing_meter", Meter.objects.filter(subject_id=key.pk), call)


def assert_refuses_an_old_address(table: str, rows: Any, call: str) -> None:
    identity = rows.get().pk
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT ctid::text FROM {table} WHERE {rows.model._meta.pk.column} = %s", [identity]
        )
        [address] = cursor.fetchone()
        cursor.execute(f"SELECT {call}", [[address]])
    before = list(rows.values())
    with (
        pytest.raises(OperationalError, match="0 of 1 rows were changed"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(f"SELECT {call}", [[address]])
    assert list(rows.values()) == before


@pytest.mark.parametrize("rows", [0, 2_000])
@pytest.mark.parametrize(
    ("statement", "parameters"), [(ADMIT, "'[]', '[]', '{}', '', ''"), (SETTLE, "'[]', '', ''")]
)
def test_accounts_and_meters_are_searched_from_the_newest_entry(
    transactional_db: None, statement: sql.Statement, parameters: str, rows: int
) -> None:
    tenant = factories.make_tenant()
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO billing_meter (subject_id, organization_id) "
            "SELECT gen_random_uuid(), %s FROM generate_series(1, %s)",
            [tenant.organization.pk, rows],
        )
        cursor.execute("ANALYZE billing_meter, billing_account")

    async def explain() -> str:
        session = await open_connection()
        try:
            await session.fetch(Statement("", f"PREPARE planned AS {statement.text}"), [], None)
            execute = f"EXPLAIN (FORMAT JSON) EXECUTE planned ({parameters})"
            return str((await session.fetch(Statement("", execute), [], None))[0][0])
        finally:
            session.terminate()

    scans = sorted(find_scans(json.loads(asyncio.run(explain()))))
    assert scans == [(f"billing_{table}_pkey", "Backward") for table in ("account", "meter")]


def find_scans(node: Any) -> Iterator[tuple[str, str]]:
    """Returns the index and the direction of each scan of accounts and meters in a plan."""
    if isinstance(node, list):
        for each in node:
            yield from find_scans(each)
    elif isinstance(node, dict):
        if node.get("Relation Name") in ("billing_account", "billing_meter"):
            yield node.get("Index Name", ""), node.get("Scan Direction", node["Node Type"])
        for each in node.values():
            yield from find_scans(each)


def test_the_transfers_of_concurrent_changes_are_ended_once(
    tenants: list[Tenant], eventually: Wait
) -> None:
    row = make_pending(tenants[0])

    def end(cursor: CursorWrapper) -> int:
        return settle(cursor, row)

    assert run_beside(end, end, eventually) == 0
    assert Transfer.objects.get(reference=row.pk).posted_nano == 40
    ledger.grant(row.organization_id, 1, actor="test")
    assert sums(tenants[0]) == (0, 40, 40, 0, 40)
    assert_in_order()
