"""The partitions of transfers guarantee what one table would, and statements read only theirs."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from billing.models import Transfer
from config.partitions.tables import read_now
from inference.ids import id_bound
from inference.settlement.settle import SETTLE
from tests.support import factories
from tests.support.factories import Tenant


def place_of(transfer: Transfer) -> str:
    statement = "SELECT tableoid::regclass::text FROM billing_transfer WHERE id = %s"
    with connection.cursor() as cursor:
        cursor.execute(statement, [transfer.pk])
        [(name,)] = cursor.fetchall()
    return str(name)


def test_a_generation_has_one_hold_in_all_partitions(tenant: Tenant) -> None:
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


def test_settlement_reads_the_partition_of_its_holds_alone(tenant: Tenant) -> None:
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
