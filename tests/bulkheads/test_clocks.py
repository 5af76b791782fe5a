"""Hosts two hours ahead of the database and two hours behind it, beside a right one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
import requests
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from accounts.models import ApiKey
from billing.models import Meter
from config.clocks.leases import LEASE_SECONDS, Lease
from inference.models import HourlyUsage, Uptime
from inference.reports.hours import HOUR, hour_of
from tests.support import factories
from tests.support.bulkheads.clocks import needs_compiler, shifted
from tests.support.bulkheads.counters import read_counter
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.processes import MANAGE, Served, environment, manage, serve

pytestmark = needs_compiler

HOURS = (2, -2)


@pytest.fixture(scope="module")
def skewed_hosts(django_db_setup: None, django_db_blocker: object) -> Iterator[dict[int, Served]]:
    with (
        django_db_blocker.unblock(),  # type: ignore[attr-defined]
        serve("--workers", "2", **shifted(2)) as ahead,
        serve(**shifted(-2)) as behind,
    ):
        # The first request to the control plane loads it, which takes long.
        assert requests.get(f"{behind.address}/api/v1/key", timeout=120).status_code == 401
        yield {2: ahead, -2: behind}


@pytest.fixture(params=HOURS, ids=["ahead", "behind"])
def hours(request: pytest.FixtureRequest) -> int:
    """The hours by which the clock of the tested host is wrong."""
    found: int = request.param
    return found


@pytest.fixture
def skewed(site: Site, skewed_hosts: dict[int, Served], hours: int) -> Site:
    """The same service through the host whose clock is wrong."""
    return replace(site, server=skewed_hosts[hours].address)


@contextmanager
def work(hours: int) -> Iterator[subprocess.Popen[str]]:
    """Runs ``work`` on a host whose clock is wrong."""
    process = subprocess.Popen(
        [sys.executable, str(MANAGE), "work"],
        env=environment(**shifted(hours)),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def database_time() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [now] = cursor.fetchone()
    found: datetime = now
    return found


def test_a_wrong_host_says_so_and_stays_ready(
    site: Site, skewed: Site, hours: int, skewed_hosts: dict[int, Served]
) -> None:
    answer = requests.get(f"{skewed.server}/readyz", timeout=60)
    assert answer.status_code == 200
    body = answer.json()
    assert body["status"] == "ok"
    assert round(body["clock"]["offset_seconds"] / 3600, 1) == hours
    side = "ahead of" if hours > 0 else "behind"
    assert f"s {side} the database's" in body["clock"]["message"]
    offset = read_counter(skewed.server, "causeway_clock_offset_seconds")
    assert round(offset / 3600, 1) == hours
    assert requests.get(f"{site.server}/readyz", timeout=60).json() == {"status": "ok"}

    # It says so once, although each process compares the clocks every second.
    said = re.findall(rf"clock of this host is \S+ s {side} the", skewed_hosts[hours].log)
    assert len(said) == 1


def test_generations_meters_and_ids_have_the_databases_time(skewed: Site) -> None:
    skewed.publish()
    before = database_time()
    assert skewed.chat().status_code == 200
    row = skewed.settled()
    after = database_time()
    assert before < row.created_at < after
    second = int(row.pk.split("-")[1])
    assert int(before.timestamp()) <= second <= int(after.timestamp())
    key = Meter.objects.get(subject_id=row.api_key_id)
    assert before < key.last_used_at < after
    assert key.day in (before.date(), after.date())
    assert_in_order()


def test_keys_expire_by_the_databases_time(skewed: Site) -> None:
    skewed.publish()
    keys = ApiKey.objects.filter(organization=skewed.tenant.organization)
    now = database_time()
    headers = {"Authorization": f"Bearer {skewed.tenant.management_key}"}

    def manages() -> int:
        url = f"{skewed.server}/api/v1/keys"
        return requests.get(url, headers=headers, timeout=60).status_code

    keys.update(expires_at=now + timedelta(minutes=30))
    assert (skewed.chat().status_code, manages()) == (200, 200)
    keys.update(expires_at=now - timedelta(minutes=30))
    assert (skewed.chat().status_code, manages()) == (401, 401)
    assert len(skewed.dialled()) == 1


def test_a_key_may_not_expire_in_the_past_of_the_database(skewed: Site) -> None:
    headers = {"Authorization": f"Bearer {skewed.tenant.management_key}"}
    now = database_time()

    def create(moment: datetime) -> int:
        body = {"name": "new", "expires_at": moment.isoformat()}
        url = f"{skewed.server}/api/v1/keys"
        return requests.post(url, json=body, headers=headers, timeout=60).status_code

    assert create(now - timedelta(minutes=30)) == 400
    assert not ApiKey.objects.filter(name="new").exists()
    assert create(now + timedelta(minutes=30)) == 201
    made = ApiKey.objects.get(name="new")
    assert now < made.created_at < database_time()


def test_failures_at_a_wrong_host_are_known_at_the_right_one(site: Site, skewed: Site) -> None:
    site.publish("sim-status:503")
    for _ in range(6):
        assert skewed.chat().status_code == 503

    def state_at(host: Site) -> str:
        found = host.post(host.chat_body(), path="/api/v1/routing/explain").json()
        state: str = found["data"]["candidates"][0]["health"]["state"]
        return state

    site.eventually(lambda: state_at(site) == "open")
    assert state_at(skewed) == "open"


def test_a_wrong_work_sums_no_hour_that_is_not_over(site: Site, hours: int) -> None:
    now = database_time()
    for age in (0, 1, 3, 4):
        moment = now - age * HOUR
        made = f"gen-{int(moment.timestamp())}-{age}"
        factories.make_generation(site.tenant, id=made, created_at=moment)
    result = manage("work", "--once", **shifted(hours))
    assert result.returncode == 0, result.stderr
    assert "the clock of this host is" in result.stderr
    summed = HourlyUsage.objects.order_by("hour").values_list("hour", "requests")
    over = hour_of(database_time() - HOUR)
    first = hour_of(now) - 4 * HOUR
    assert [hour for hour, _ in summed] == [
        first + number * HOUR for number in range((over - first) // HOUR)
    ]
    assert dict(summed)[first] == 1


def test_a_wrong_work_leaves_the_duties_to_the_others(site: Site, hours: int) -> None:
    with work(hours) as wrong:
        site.eventually(lambda: Lease.objects.filter(name="clear_sessions", holder="").exists())
        # It is due again within its interval, not after the two hours.
        due = Lease.objects.get(name="clear_sessions").until
        assert database_time() + timedelta(minutes=58) < due
        assert due < database_time() + timedelta(minutes=60)
        wrong.send_signal(signal.SIGKILL)
        wrong.wait()
    # It may have been killed in the middle of a duty, whose lease it keeps for a while.
    Lease.objects.update(until=database_time(), renewed_at=None)
    long_ago = timezone.now() - timedelta(seconds=90)
    row = factories.make_generation(site.tenant, status="pending", created_at=long_ago)
    Uptime.objects.update(since=long_ago - timedelta(seconds=90))
    call_command("work", once=True)
    row.refresh_from_db()
    assert (row.status, row.error_type) == ("failed", "abandoned")
    assert_in_order()


def test_a_lease_that_a_wrong_clock_wrote_is_due(site: Site) -> None:
    """Processes of an older release write leases by the clock of their host."""
    Lease.objects.create(name="clear_sessions", until=database_time() + timedelta(hours=3))
    call_command("work", once=True)
    due = Lease.objects.get(name="clear_sessions").until
    assert due < database_time() + timedelta(hours=1)


def test_a_killed_work_loses_its_leases(site: Site) -> None:
    now = database_time()
    dead = {"holder": "elsewhere:7:dead", "until": now}
    Lease.objects.create(
        name="clear_sessions", renewed_at=now - timedelta(seconds=LEASE_SECONDS + 1), **dead
    )
    Lease.objects.create(name="clear_health", renewed_at=now, **dead)
    result = manage("work", "--once")
    assert "clear_sessions: taken over from elsewhere:7:dead" in result.stderr
    assert Lease.objects.get(name="clear_sessions").holder == ""
    # The other holder lives, so its duty was left to it.
    left = Lease.objects.get(name="clear_health")
    assert (left.holder, left.until) == ("elsewhere:7:dead", now)
