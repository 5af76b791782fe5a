"""The table of transfers of an earlier release is divided without losing what it guarantees."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from billing import ledger
from billing.models import Transfer
from config.partitions.tables import list_partitions, read_now
from inference.ids import id_bound
from inference.settlement.settle import SETTLE
from tests.support import factories
from tests.support.database import archive
from tests.support.factories import Tenant

DIVISION = import_module("billing.migrations.0009_partitions_of_transfers")


def run(statement: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


@pytest.fixture
def plain(transactional_db: None) -> Iterator[None]:
    """The table as an earlier release had it."""
    DIVISION.backward(None, None)
    assert list_partitions(Transfer.partitioning) == []
    yield
    if not list_partitions(Transfer.partitioning):
        DIVISION.forward(None, None)


def place_of(transfer: Transfer) -> str:
    [(name,)] = run(
        f"SELECT tableoid::regclass::text FROM billing_transfer WHERE id = {transfer.pk}"
    )
    return str(name)


def test_old_transfers_become_the_first_partition(plain: None) -> None:
    tenant = factories.make_tenant()
    ledger.grant(tenant.organization.pk, 5, actor="test", note="100 %")
    ledger.credit_deposit(tenant.organization.pk, 9, reference="deposit:1", actor="test")
    paid = factories.make_generation(tenant, cost_nano=7)
    before = [*Transfer.objects.order_by("pk").values()]
    file = run("SELECT pg_relation_filenode('billing_transfer')")

    DIVISION.forward(None, None)

    first, *later = list_partitions(Transfer.partitioning)
    assert run(f"SELECT pg_relation_filenode('{first.name}')") == file
    assert (first.begin, later[-1].is_default) == (None, True)
    expected = [{**row, "reference": row["reference"] or f"credit:{row['id']}"} for row in before]
    assert [*Transfer.objects.order_by("pk").values()] == expected
    assert archive.verify() == [
        f"transfer {Transfer.objects.get(kind='deposit').pk}: there is no credited deposit:1"
    ]
    grant = ledger.grant(tenant.organization.pk, 5, actor="test")
    assert (grant.reference, grant.pk) == (None, before[-1]["id"] + 1)
    assert place_of(grant) == "billing_transfer_default"
    assert place_of(ledger.refund(paid.pk, actor="test")) == first.name
    DIVISION.forward(None, None)
    assert run("SELECT 1 FROM pg_proc WHERE proname = 'causeway_name_grant_1'") == []


def test_a_division_that_was_broken_off_goes_on(plain: None) -> None:
    """An old worker grants credits while the rows get their references."""
    tenant = factories.make_tenant()
    with connection.cursor() as cursor:
        DIVISION.name_grants(cursor)
    grant = ledger.grant(tenant.organization.pk, 5, actor="test")
    assert Transfer.objects.get(pk=grant.pk).reference == f"credit:{grant.pk}"
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        Transfer.objects.filter(pk=grant.pk).update(reference=None)

    DIVISION.forward(None, None)

    assert archive.verify() == []
    assert Transfer.objects.filter(reference__startswith="credit:").count() == 2


def test_a_generation_has_one_hold_in_all_partitions(db: None, tenant: Tenant) -> None:
    later = id_bound(read_now() + timedelta(days=40)) + "-0"
    account = tenant.organization.accounts.get(kind="credits")
    usage = tenant.organization.accounts.get(kind="usage")

    def hold(reference: str) -> Transfer:
        return Transfer.objects.create(
            organization=tenant.organization, kind="usage", debit=account, credit=usage,
            amount_nano=5, status="pending", reference=reference,
        )  # fmt: skip

    made = hold(later)
    assert place_of(made) not in ("billing_transfer_default", place_of(hold(id_bound(read_now()))))
    with pytest.raises(IntegrityError, match="reference"), transaction.atomic():
        hold(later)
    with pytest.raises(IntegrityError, match="never changed"), transaction.atomic():
        Transfer.objects.filter(pk=made.pk).delete()


def test_settlement_reads_the_partition_of_its_holds_alone(db: None, tenant: Tenant) -> None:
    """The data plane's plans are generic, so partitions are left out when a statement begins."""
    row = factories.make_generation(tenant, status="pending")
    factories.place_hold(row, 9)
    settled = {
        "id": row.pk, "status": "completed", "cost_nano": 4, "upstream_cost_nano": 4,
        "is_estimated": False, "attempts": [],
    }  # fmt: skip
    outcome = json.dumps([settled])
    with connection.cursor() as cursor:
        for name in ("enable_seqscan", "enable_bitmapscan", "jit"):
            cursor.execute(f"SET LOCAL {name} = off")
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE settle_plan (json, text, text) AS {SETTLE.text}")
        cursor.execute(
            f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) EXECUTE settle_plan "
            f"('{outcome}', '{row.pk}', '{row.pk}')"
        )
        plan = [line for (line,) in cursor.fetchall()]
        cursor.execute("DEALLOCATE settle_plan")
    scans = [line for line in plan if " Scan" in line and " on billing_transfer_" in line]
    executed = [line for line in scans if "never executed" not in line]
    place = place_of(Transfer.objects.get(reference=row.pk))
    assert [place in line for line in executed] == [True]
