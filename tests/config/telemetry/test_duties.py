"""The metrics of duties and of the ledger: who does them, and when they last succeeded."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
import requests
from django.contrib.postgres.functions import TransactionNow
from django.core.management import call_command

from billing.models import Account
from config.clocks.clock import clock
from config.clocks.duties import DutyCollector
from config.clocks.leases import Lease, process_name
from config.local.bootstrap import PROJECT
from inference.settlement.collector import HoldCollector
from inference.settlement.verification import CHECK_LEDGER, check_daily
from tests.support import factories
from tests.support.bulkheads.counters import read_metrics
from tests.support.factories import Tenant
from tests.support.machine.ports import reserved_port
from tests.support.processes import POOLER_ADDRESS, environment, manage


def collected() -> dict[str, float]:
    """Returns the values of the collectors of duties and holds, by name and labels."""
    return {
        f"{each.name}{dict(sorted(each.labels.items())) or ''}": each.value
        for collector in (DutyCollector(), HoldCollector())
        for family in collector.collect()
        for each in family.samples
    }


def test_a_duty_that_succeeds_and_one_that_fails_are_told_apart(db: None) -> None:
    long_ago = TransactionNow() - timedelta(hours=1)
    with Lease.objects.hold("good", every_seconds=60):
        pass
    for _ in range(2):
        Lease.objects.update(until=TransactionNow(), succeeded_at=long_ago)
        with pytest.raises(ZeroDivisionError), Lease.objects.hold("bad", every_seconds=30):
            raise ZeroDivisionError
    with Lease.objects.hold("good", every_seconds=60) as is_held:
        assert is_held
        running = collected()
    found = collected()
    host = process_name().partition(":")[0]
    assert running[f"causeway_duty_running{{'duty': 'good', 'host': '{host}'}}"] == 1
    assert [name for name in found if name.startswith("causeway_duty_running")] == []
    assert found["causeway_duty_failures{'duty': 'bad'}"] == 2
    assert found["causeway_duty_failures{'duty': 'good'}"] == 0
    assert found["causeway_duty_interval_seconds{'duty': 'bad'}"] == 30
    now, name = clock.time(), "causeway_duty_success_timestamp_seconds"
    assert now - found[f"{name}{{'duty': 'bad'}}"] > 3590
    assert now - found[f"{name}{{'duty': 'good'}}"] < 600


def test_a_duty_that_waits_first_is_due_after_its_first_interval(db: None) -> None:
    def is_due() -> bool:
        with Lease.objects.hold("slow", every_seconds=60, waits_first=True) as is_held:
            return is_held

    assert [is_due(), is_due()] == [False, False]
    assert Lease.objects.get().holder == ""
    Lease.objects.update(until=TransactionNow())
    assert [is_due(), is_due()] == [True, False]


def test_the_daily_check_reports_what_differs(
    tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    Lease.objects.create(name=CHECK_LEDGER, until=TransactionNow())
    assert "causeway_ledger_differences" not in collected()
    assert check_daily() == 0
    assert collected()["causeway_ledger_differences"] == 0
    account = Account.objects.get(organization=tenant.organization, kind=Account.Kind.CREDITS)
    Account.objects.filter(pk=account.pk).update(posted_credits=account.posted_credits + 5)
    with caplog.at_level(logging.ERROR):
        found = check_daily()
    assert collected()["causeway_ledger_differences"] == found > 0
    assert f"{account.pk}" in caplog.text
    Account.objects.filter(pk=account.pk).update(posted_credits=account.posted_credits)
    call_command("verify_ledger", stdout=io.StringIO(), stderr=io.StringIO())
    assert collected()["causeway_ledger_differences"] == 0


def test_the_ledger_of_a_standby_is_verified_and_nothing_is_stored(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pooler passes no options on.
    monkeypatch.delenv(POOLER_ADDRESS, raising=False)
    Lease.objects.create(name=CHECK_LEDGER, until=TransactionNow(), result=3)
    found = manage("verify_ledger", "--json", PGOPTIONS="-c default_transaction_read_only=on")
    assert (found.returncode, json.loads(found.stdout)) == (0, {"differences": []})
    assert Lease.objects.get().result == 3


def test_open_holds_have_a_number_and_an_age(tenant: Tenant) -> None:
    assert collected()["causeway_open_holds"] == collected()["causeway_oldest_hold_seconds"] == 0
    long_ago = clock.now() - timedelta(seconds=500)
    first = f"gen-{int(long_ago.timestamp())}-0123456789abcdef0123"
    factories.make_generation(tenant, id=first, status="pending", created_at=long_ago)
    factories.make_generation(tenant, status="pending")
    factories.make_generation(tenant, status="completed", created_at=long_ago)
    found = collected()
    assert found["causeway_open_holds"] == 2
    assert 490 < found["causeway_oldest_hold_seconds"] < 800


def test_work_reports_its_duties_on_a_port_of_its_own(
    transactional_db: None, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    def is_reported() -> bool:
        try:
            text = read_metrics(f"http://127.0.0.1:{port}")
        except requests.ConnectionError:
            return False
        return 'causeway_duty_success_timestamp_seconds{duty="sweep_generations"}' in text

    with reserved_port() as port:
        process = subprocess.Popen(
            [sys.executable, str(PROJECT / "manage.py"), "work"],
            env=environment(METRICS_PORT=str(port)),
        )
        try:
            eventually(is_reported)
        finally:
            process.terminate()
            assert process.wait(30) == 0
