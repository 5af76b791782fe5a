"""Reads from a streaming replica: what is read there, when it is not, and that nobody notices."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from accounts.models import Organization
from inference.models import Generation
from tests.support import factories, processes
from tests.support.bulkheads.counters import read_metrics
from tests.support.database.replica import Replica, run_balancer, run_replica
from tests.support.inference.site import Site
from tests.support.processes import Served, manage, serve

GROUPS = "/admin/auth/group/"


@pytest.fixture(scope="module")
def _replica(django_db_setup: None) -> Iterator[Replica]:
    with run_replica() as replica:
        yield replica


@pytest.fixture
def replica(_replica: Replica) -> Iterator[Replica]:
    """A replica that has everything, and runs again after the test."""
    _replica.catch_up()
    yield _replica
    if _replica.process is None:
        _replica.start()
    _replica.wake()
    _replica.resume()


@pytest.fixture(scope="module")
def _services(
    django_db_setup: None, django_db_blocker: Any, _replica: Replica
) -> Iterator[dict[str, Served]]:
    with django_db_blocker.unblock():
        url = _replica.url(processes.environment()["DATABASE_URL"])
        with (
            serve(DATABASE_REPLICA_URL=url, REPLICA_MAX_LAG="100000") as patient,
            serve(DATABASE_REPLICA_URL=url, REPLICA_MAX_LAG="1") as strict,
        ):
            yield {"patient": patient, "strict": strict}


@pytest.fixture
def patient(site: Site, replica: Replica, _services: dict[str, Served]) -> Site:
    """A service that reads the replica however far it is behind."""
    site.server = _services["patient"].address
    return site


@pytest.fixture
def strict(site: Site, replica: Replica, _services: dict[str, Served]) -> Site:
    """A service that reads the replica while it lags less than a second."""
    site.server = _services["strict"].address
    return site


def count_generations(site: Site) -> int:
    """Asks for the analytics of the tenant's organization."""
    body = {"metrics": ["request_count"]}
    found = site.post(body, path="/api/v1/analytics/query", key=site.tenant.management_key)
    assert found.status_code == 200, found.text
    return sum(int(row["request_count"]) for row in found.json()["data"]["data"])


def reads(site: Site) -> Counter[str]:
    """Returns how often each server was read, ``replica`` or ``primary`` with the reason."""
    metrics = read_metrics(site.server)
    found: Counter[str] = Counter()
    for reason, server, count in re.findall(
        r'causeway_replica_reads_total\{reason="(\w*)",server="(\w+)"\} (\S+)', metrics
    ):
        found[f"{server} {reason}".strip()] += int(float(count))
    return found


def await_replica(site: Site) -> None:
    """Reads until the replica answers."""
    before = reads(site)["replica"]

    def is_read() -> bool:
        count_generations(site)
        return reads(site)["replica"] > before

    site.eventually(is_read)


def await_reason(site: Site, reason: str) -> None:
    """Reads until the primary answers for a reason."""
    before = reads(site)[f"primary {reason}"]

    def is_refused() -> bool:
        count_generations(site)
        return reads(site)[f"primary {reason}"] > before

    site.eventually(is_refused)


def sign_in(site: Site, name: str, **fields: Any) -> requests.Session:
    """Returns a browser of a signed-in operator."""
    client = Client()
    client.force_login(User.objects.create_user(name, is_staff=True, **fields))
    browser = requests.Session()
    browser.cookies.set("sessionid", client.cookies["sessionid"].value)
    return browser


def test_reports_are_read_from_the_replica(patient: Site, replica: Replica) -> None:
    factories.make_generation(patient.tenant)
    replica.catch_up()
    await_replica(patient)
    assert count_generations(patient) == 1
    replica.pause()
    factories.make_generation(patient.tenant)
    assert count_generations(patient) == 1
    replica.resume()
    replica.catch_up()
    assert count_generations(patient) == 2
    factories.make_generation(patient.tenant)
    activity = requests.get(
        f"{patient.server}/api/v1/activity",
        headers={"Authorization": f"Bearer {patient.tenant.management_key}"},
        timeout=60,
    )
    assert activity.status_code == 200


def test_requests_and_single_rows_are_never_read_there(patient: Site, replica: Replica) -> None:
    await_replica(patient)
    replica.pause()
    before = reads(patient)
    stranger = factories.make_tenant("After the pause")
    patient.publish()
    answered = patient.post(patient.chat_body(), key=stranger.api_key)
    assert answered.status_code == 200
    headers = {"Authorization": f"Bearer {stranger.management_key}"}
    for path in (f"generation?id={answered.json()['id']}", "keys", "credits"):
        found = requests.get(f"{patient.server}/api/v1/{path}", headers=headers, timeout=60)
        assert found.status_code == 200, found.text
    assert reads(patient) == before
    patient.eventually(lambda: not Generation.objects.filter(status="pending").exists())


def test_exports_are_read_from_the_replica(replica: Replica, site: Site, tmp_path: Path) -> None:
    factories.make_generation(site.tenant)
    replica.catch_up()
    replica.pause()
    factories.make_generation(site.tenant)
    url = replica.url(processes.environment()["DATABASE_URL"])
    exported = []
    for given in ({"DATABASE_REPLICA_URL": url, "REPLICA_MAX_LAG": "100000"}, {}):
        done = manage("export_generations", str(tmp_path / "rows.jsonl"), "--json", **given)
        assert done.returncode == 0, done.stderr
        exported.append(json.loads(done.stdout)["exported"]["generations"])
    assert exported == [1, 2]


def test_an_operator_sees_what_they_wrote_and_what_they_may(
    patient: Site, replica: Replica
) -> None:
    writer = sign_in(patient, "writer", is_superuser=True)
    reader = sign_in(patient, "reader", is_superuser=True)
    await_replica(patient)
    groups = f"{patient.server}{GROUPS}"
    assert reader.get(groups, timeout=60).status_code == 200
    replica.pause()
    form = writer.get(f"{groups}add/", timeout=60)
    [token] = set(re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form.text))
    writer.cookies.set("csrftoken", form.cookies["csrftoken"])
    saved = writer.post(
        f"{groups}add/", {"csrfmiddlewaretoken": token, "name": "Night shift"}, timeout=60
    )
    assert (saved.url, saved.status_code) == (groups, 200)
    for _ in range(2):
        assert "Night shift" in writer.get(groups, timeout=60).text
        assert "Night shift" not in reader.get(groups, timeout=60).text
    assert reads(patient)["primary own_write"] >= 3
    replica.resume()
    replica.catch_up()
    before = reads(patient)["replica"]

    def is_read() -> bool:
        assert "Night shift" in writer.get(groups, timeout=60).text
        return reads(patient)["replica"] > before

    patient.eventually(is_read)
    # Authority is the primary's, however old the replica is.
    replica.pause()
    User.objects.filter(username="reader").update(is_superuser=False)
    assert reader.get(groups, timeout=60).status_code == 403
    User.objects.filter(username="writer").update(is_active=False)
    assert writer.get(groups, timeout=60).url != groups


def test_a_forged_position_is_no_position(patient: Site, replica: Replica) -> None:
    browser = sign_in(patient, "reader", is_superuser=True)
    await_replica(patient)
    browser.cookies.set("causeway_written", "18446744073709551615:forged")
    before = reads(patient)["replica"]
    assert browser.get(f"{patient.server}{GROUPS}", timeout=60).status_code == 200
    assert reads(patient)["replica"] == before + 1


def test_a_replica_that_lags_is_not_read(strict: Site, replica: Replica) -> None:
    await_replica(strict)
    replica.pause()
    factories.make_generation(strict.tenant)
    await_reason(strict, "lag")
    assert count_generations(strict) == 1
    factories.make_generation(strict.tenant)
    # The answer ends at the worker's time, which may be a little behind that of the test.
    strict.eventually(lambda: count_generations(strict) == 2)
    replica.resume()
    await_replica(strict)
    before = reads(strict)["replica"]
    strict.eventually(lambda: count_generations(strict) == 2)
    assert reads(strict)["replica"] > before


def test_an_idle_primary_makes_no_lag(strict: Site, replica: Replica) -> None:
    await_replica(strict)
    before = reads(strict)
    for _ in range(30):
        count_generations(strict)
    now = reads(strict)
    assert now["replica"] == before["replica"] + 30
    assert "causeway_replica_lag_seconds" in read_metrics(strict.server)


def test_a_killed_replica_is_replaced_by_the_primary(strict: Site, replica: Replica) -> None:
    factories.make_generation(strict.tenant)
    await_replica(strict)
    replica.kill()
    for _ in range(5):
        assert count_generations(strict) == 1
    await_reason(strict, "down")
    replica.start()
    await_replica(strict)


def test_a_hanging_replica_slows_nobody_for_long(
    strict: Site, replica: Replica, is_served: Callable[[], bool]
) -> None:
    factories.make_generation(strict.tenant)
    strict.publish()
    await_replica(strict)
    replica.hang()
    # The first one may wait for the replica until a check finds out.
    assert count_generations(strict) == 1
    assert is_served()
    await_reason(strict, "down")
    before = reads(strict)
    for _ in range(5):
        assert count_generations(strict) == 1
    assert reads(strict)["primary down"] == before["primary down"] + 5
    replica.wake()
    await_replica(strict)
    strict.eventually(lambda: not Generation.objects.filter(status="pending").exists())


def test_a_promoted_replica_is_not_read(site: Site) -> None:
    with run_replica() as replica:
        url = replica.url(processes.environment()["DATABASE_URL"])
        with serve(DATABASE_REPLICA_URL=url) as served:
            site.server = served.address
            await_replica(site)
            replica.ask("SELECT pg_promote()")
            await_reason(site, "promoted")
            # The reader may find out before the next check does.
            site.eventually(lambda: "was it promoted?" in served.log)
            factories.make_generation(site.tenant)
            assert count_generations(site) == 1


def test_each_of_several_standbys_is_judged_by_itself(site: Site, replica: Replica) -> None:
    """A proxy leads the check to one of them, and the readers to the other one."""
    with run_replica() as slow, run_balancer(replica, slow) as both:
        url = both.url(processes.environment()["DATABASE_URL"])
        with serve(DATABASE_REPLICA_URL=url, REPLICA_MAX_LAG="1") as served:
            site.server = served.address
            factories.make_generation(site.tenant)
            await_replica(site)
            slow.pause()
            factories.make_generation(site.tenant)
            await_reason(site, "lag")
            site.eventually(lambda: count_generations(site) == 2)
            before = reads(site)
            for _ in range(10):
                assert count_generations(site) == 2
            assert reads(site)["primary lag"] == before["primary lag"] + 10
            slow.resume()
            await_replica(site)
            slow.ask("SELECT pg_promote()")
            await_reason(site, "promoted")


def test_a_replica_of_another_database_is_not_read(site: Site, replica: Replica) -> None:
    url = replica.url(processes.environment()["DATABASE_URL"])
    other = url.replace(f"/{connection.settings_dict['NAME']}?", "/postgres?")
    with serve(DATABASE_REPLICA_URL=other) as served:
        site.server = served.address
        await_reason(site, "other_database")
        assert "is no copy of DATABASE_URL" in served.log


CODE = """
from django.db import connection, transaction
from accounts.models import Organization
from config.database.replica.reading import answer, wait_for_replica
from config.database.replica.watch import watch

def is_on_replica():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_is_in_recovery()")
        return cursor.fetchone()[0]

def write():
    Organization.objects.create(name="Written")
    return is_on_replica()

print(watch.find_problem())
wait_for_replica()
print(answer(is_on_replica), is_on_replica())
with transaction.atomic():
    print(answer(is_on_replica))
print(answer(write))
print(answer(is_on_replica))
"""


def test_transactions_and_writes_are_the_primarys(replica: Replica, transactional_db: None) -> None:
    url = replica.url(processes.environment()["DATABASE_URL"])
    given = {"DATABASE_REPLICA_URL": url, "REPLICA_MAX_LAG": "100000"}
    done = manage("shell", "--no-imports", "-c", CODE, **given)
    assert done.returncode == 0, done.stderr
    # Nobody waits for the first check; a write that was tried on the replica was made once.
    assert done.stdout.split() == ["unknown", "True", "False", "False", "False", "True"]
    assert "read-only transaction" in done.stderr
    assert Organization.objects.filter(name="Written").count() == 1
