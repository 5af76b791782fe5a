"""A lock on one organization's rows holds up that organization alone.

``python -m tests.bench.bulkheads`` prints the rates and latencies of the others meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import pytest
import requests
from django.db.models import QuerySet

from accounts.models import ApiKey, Organization
from billing.models import Account, Meter, Transfer
from catalog.dialects.base import Operation
from catalog.models import ModelEndpoint
from config.secrets import digest_api_key
from config.server.batching.waits import Blocked, Suspects
from inference.admission.admit import AdmissionLanes, Repinned
from inference.admission.decide import Admission, AdmissionRequest
from inference.models import EndpointHealth, Generation, Journal
from inference.requests import parsing
from inference.routing.health import HealthTable
from inference.settlement.settle import Settlement, SettlementStore
from inference.settlement.sweeper import sweep
from tests.support import factories
from tests.support.bulkheads.counters import read_counter
from tests.support.bulkheads.load import Load
from tests.support.database.locks import locked
from tests.support.factories import Tenant
from tests.support.inference.site import Site, content_of, events_of
from tests.support.ledger import assert_in_order, assert_settled_in_order

# Rows of an organization that an admission locks, by the relation that log and metrics name.
ADMISSION_ROWS: dict[str, Callable[[Organization], QuerySet[Any]]] = {
    "billing_account": lambda owner: Account.objects.filter(organization=owner),
    "accounts_organization": lambda owner: Organization.objects.filter(pk=owner.pk),
    "billing_meter": lambda owner: Meter.objects.filter(subject_id__in=owner.api_keys.values("pk")),
}
# Rows of a generation that its settlement locks.
SETTLEMENT_ROWS: dict[str, Callable[[Generation], QuerySet[Any]]] = {
    "inference_generation": lambda row: Generation.objects.filter(pk=row.pk),
    "inference_journal": lambda row: Journal.objects.filter(pk=row.pk),
    "billing_transfer": lambda row: Transfer.objects.filter(reference=row.pk),
    "billing_account": lambda row: Account.objects.filter(organization=row.organization_id),
    "billing_meter": lambda row: Meter.objects.filter(subject_id=row.api_key_id),
}


def count_timeouts(service: Site, statement: str, relation: str) -> float:
    return read_counter(
        service.server, "causeway_lock_timeouts_total", statement=statement, relation=relation
    )


@pytest.mark.parametrize("relation", ADMISSION_ROWS)
def test_a_locked_organization_is_refused_and_all_others_are_served(
    service: Site,
    neighbours: list[Tenant],
    load: Load,
    logged: Callable[[str], list[str]],
    relation: str,
) -> None:
    assert service.chat().status_code == 200
    service.settled()
    before = count_timeouts(service, "admit", relation)
    organization_id = service.tenant.organization.pk
    with locked(ADMISSION_ROWS[relation](service.tenant.organization)), load:
        refused = service.chat()
        load.wait_for_answers(2)
        assert Generation.objects.filter(organization_id=organization_id).count() == 1
    assert refused.status_code == 503
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["error"] == {
        "code": 503,
        "message": (
            "Another transaction has locked a row that this request needs. Nothing was stored. "
            "Try again shortly."
        ),
        "metadata": {"error_type": "server"},
    }
    assert set(load.statuses()) == {200}
    # Tried again and again, in turns of its own, each of which the metrics count.
    assert count_timeouts(service, "admit", relation) - before >= 2
    assert logged(f"for a lock in {relation}, for organization {organization_id}")

    assert service.chat().status_code == 200
    service.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert Generation.objects.filter(organization_id=organization_id).count() == 2
    assert Generation.objects.exclude(status="completed").count() == 0
    assert_in_order()


def test_a_locked_key_holds_up_nobody(service: Site, neighbours: list[Tenant], load: Load) -> None:
    assert service.chat().status_code == 200
    before = read_counter(service.server, "causeway_lock_timeouts_total")
    with locked(ApiKey.objects.filter(organization=service.tenant.organization)), load:
        assert service.chat().status_code == 200
        load.wait_for_answers(2)
    assert set(load.statuses()) == {200}
    assert read_counter(service.server, "causeway_lock_timeouts_total") == before
    assert_settled_in_order()


def test_a_request_that_waits_for_a_lock_is_served_once_it_is_released(service: Site) -> None:
    before = count_timeouts(service, "admit", "billing_account")
    with ThreadPoolExecutor(3) as pool, ExitStack() as holder:
        holder.enter_context(locked(ADMISSION_ROWS["billing_account"](service.tenant.organization)))
        waiting = [pool.submit(service.chat) for _ in range(3)]
        service.eventually(
            lambda: count_timeouts(service, "admit", "billing_account") - before >= 2
        )
        assert not Generation.objects.exists()
        holder.close()
        assert [each.result().status_code for each in waiting] == [200] * 3
    service.eventually(lambda: Generation.objects.filter(status="completed").count() == 3)
    assert_in_order()


def test_more_locked_organizations_than_side_lanes_hold_up_none_of_the_others(
    service: Site, neighbours: list[Tenant], load: Load
) -> None:
    tenants = [factories.make_tenant(f"Locked {number}") for number in range(12)]
    owners = [each.organization for each in tenants]
    with (
        ThreadPoolExecutor(len(tenants)) as pool,
        locked(Account.objects.filter(organization__in=owners)),
        load,
    ):
        refused = list(
            pool.map(lambda each: service.post(service.chat_body(), key=each.api_key), tenants)
        )
        load.wait_for_answers(2)
    assert [answer.status_code for answer in refused] == [503] * len(tenants)
    assert set(load.statuses()) == {200}
    assert not Generation.objects.filter(organization__in=owners).exists()
    for each in tenants:
        assert service.post(service.chat_body(), key=each.api_key).status_code == 200
    assert_settled_in_order()


@pytest.mark.parametrize("relation", SETTLEMENT_ROWS)
def test_a_settlement_waits_for_its_lock_and_all_others_are_settled(
    service: Site,
    neighbours: list[Tenant],
    load: Load,
    logged: Callable[[str], list[str]],
    relation: str,
) -> None:
    service.publish("sim-gated", model=factories.make_model("acme/gated"))
    before = count_timeouts(service, "settle", relation)
    answer = open_gated_stream(service)
    row = Generation.objects.get()
    with locked(SETTLEMENT_ROWS[relation](row)), load:
        service.upstream.release(20)
        # The caller has everything, and waits for no settlement.
        assert content_of(events_of(answer.text)) == "You said: one two"
        service.eventually(lambda: count_timeouts(service, "settle", relation) - before >= 2)
        load.wait_for_answers(2)
        service.eventually(
            lambda: Generation.objects.filter(status="completed").count() >= 2 * len(neighbours)
        )
        row.refresh_from_db()
        assert row.status == "pending"
        assert sweep() == 0
    assert logged(f"for a lock in {relation}, for organization {row.organization_id}")
    service.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    row.refresh_from_db()
    assert (row.status, row.cost_nano) == ("completed", 2 * 1_000 + 4 * 2_000)
    assert set(load.statuses()) == {200}
    assert_in_order()


@pytest.mark.parametrize("relation", SETTLEMENT_ROWS)
def test_a_batch_that_meets_a_lock_learns_whose_it_is(
    transactional_db: None, relation: str
) -> None:
    tenants = [factories.make_tenant(name) for name in ("One", "Two", "Three")]
    rows = [factories.make_generation(each, status="pending") for each in tenants]
    for row in rows:
        factories.place_hold(row, 1_000)
    batch = [Settlement(row.pk, "completed") for row in rows]
    owners = [each.organization.pk for each in tenants]

    async def store() -> list[Blocked | None]:
        settlements = SettlementStore()
        results = list(await settlements.store(batch, owners))
        await settlements.close()
        return results

    with locked(SETTLEMENT_ROWS[relation](rows[1]).order_by()):
        results = asyncio.run(store())
    assert [result and result.organization_id for result in results] == [owners[1]] * 3
    assert asyncio.run(store()) == [None] * 3
    assert_in_order()


def test_one_locked_generation_does_not_hold_up_its_organization(service: Site) -> None:
    service.publish("sim-gated", model=factories.make_model("acme/gated"))
    answer = open_gated_stream(service)
    row = Generation.objects.get()
    with locked(SETTLEMENT_ROWS["inference_journal"](row)):
        service.upstream.release(20)
        assert answer.text.endswith("data: [DONE]\n\n")
        assert [service.chat().status_code for _ in range(3)] == [200] * 3
        service.eventually(lambda: Generation.objects.filter(status="completed").count() == 3)
        row.refresh_from_db()
        assert row.status == "pending"
    service.eventually(lambda: Generation.objects.filter(status="completed").count() == 4)
    assert_in_order()


def test_the_heartbeat_of_a_generation_continues_while_its_settlement_is_blocked(
    service: Site,
) -> None:
    service.publish("sim-gated", model=factories.make_model("acme/gated"))
    answer = open_gated_stream(service)
    row = Generation.objects.get()

    def beat_at() -> datetime:
        return Journal.objects.get(generation=row).beat_at

    before = count_timeouts(service, "settle", "billing_account")
    with locked(SETTLEMENT_ROWS["billing_account"](row)):
        service.upstream.release(20)
        assert answer.text.endswith("data: [DONE]\n\n")
        service.eventually(
            lambda: count_timeouts(service, "settle", "billing_account") - before >= 2
        )
        for _ in range(2):
            last = beat_at()
            service.eventually(lambda last=last: beat_at() > last)  # type: ignore[misc]
    assert_settled_in_order()


def test_a_locked_journal_holds_up_no_other_journal(
    service: Site, neighbours: list[Tenant]
) -> None:
    service.publish("sim-gated", model=factories.make_model("acme/gated"))
    streams = [open_gated_stream(service), open_gated_stream(service, neighbours[0].api_key)]
    mine, theirs = (
        Generation.objects.get(organization=each.organization)
        for each in (service.tenant, neighbours[0])
    )
    service.eventually(lambda: Journal.objects.filter(beat_at__gt=mine.created_at).count() == 2)
    with locked(SETTLEMENT_ROWS["inference_journal"](mine)):
        for _ in range(2):
            last = Journal.objects.get(generation=theirs).beat_at
            service.eventually(
                lambda last=last: Journal.objects.get(generation=theirs).beat_at > last  # type: ignore[misc]
            )
        assert sweep() == 0
    service.upstream.release(40)
    assert all(stream.text.endswith("data: [DONE]\n\n") for stream in streams)
    service.eventually(lambda: Generation.objects.filter(status="completed").count() == 2)
    assert_in_order()


def test_a_locked_row_of_the_shared_health_stops_neither_journals_nor_readiness(
    service: Site, neighbours: list[Tenant], load: Load
) -> None:
    service.publish("sim-gated", model=factories.make_model("acme/gated"))
    assert service.chat().status_code == 200
    service.eventually(lambda: Generation.objects.filter(status="completed").count() == 1)
    # The rows of all slots, because a service that writes to a new one would meet no lock.
    EndpointHealth.objects.bulk_create(
        [
            EndpointHealth(
                endpoint_id=endpoint.pk, slot=slot, bucket=0, successes=0, failures=0,
                latencies=[], speeds=[], retry_at=0,
            )
            for endpoint in ModelEndpoint.objects.all()
            for slot in range(12)
        ],
        ignore_conflicts=True,
    )  # fmt: skip
    stream = open_gated_stream(service)
    row = Generation.objects.get(status="pending")
    before = count_timeouts(service, "exchange_health", "inference_endpointhealth")
    with locked(EndpointHealth.objects.all()), load:
        load.wait_for_answers(1)
        service.eventually(
            lambda: count_timeouts(service, "exchange_health", "inference_endpointhealth") > before
        )
        last = Journal.objects.get(generation=row).beat_at
        service.eventually(lambda: Journal.objects.get(generation=row).beat_at > last)
        assert requests.get(f"{service.server}/readyz", timeout=60).status_code == 200
        load.wait_for_answers(1)
    assert set(load.statuses()) == {200}
    service.upstream.release(20)
    assert stream.text.endswith("data: [DONE]\n\n")


def test_a_locked_organization_does_not_hold_up_the_fallbacks_of_others(
    site: Site, neighbours: list[Tenant]
) -> None:
    site.publish()
    site.publish(provider=site.another_provider("second"))
    mine, theirs = site.tenant, neighbours[0]
    served_by: dict[str, str] = {}

    async def run() -> None:
        lanes = AdmissionLanes(HealthTable(), Suspects())
        settlements = SettlementStore()
        admissions = [await submit(lanes, site, each) for each in (mine, theirs)]
        blocked, free = ((admission, admission.candidates[1].candidate) for admission in admissions)
        row = Generation(pk=blocked[0].generation_id)
        with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
            holder = asyncio.get_running_loop().run_in_executor
            lock = locked(SETTLEMENT_ROWS["inference_generation"](row))
            await holder(pool, stack.enter_context, lock)
            waiting = asyncio.create_task(lanes.repin(*blocked))
            await asyncio.sleep(0)
            assert await lanes.repin(*free) is Repinned.MOVED
            assert await lanes.repin(*free) is Repinned.MOVED
            assert not waiting.done()
            await holder(pool, stack.close)
            assert await waiting is Repinned.MOVED
        await settlements.store(
            [Settlement(admission.generation_id, "cancelled") for admission in admissions]
        )
        await lanes.close()
        await settlements.close()
        served_by.update(
            {
                admission.generation_id: candidate.route.facts.provider_name
                for admission, candidate in (blocked, free)
            }
        )

    asyncio.run(run())
    assert dict(Generation.objects.values_list("pk", "provider_name")) == served_by
    assert_in_order()


def open_gated_stream(service: Site, key: str | None = None) -> requests.Response:
    """Begins a stream whose first event has come; the others wait for ``release``."""
    answer = service.post(
        {**service.chat_body("one two", stream=True), "model": "acme/gated"}, key=key, stream=True
    )
    assert answer.status_code == 200
    return answer


async def submit(lanes: AdmissionLanes, site: Site, tenant: Tenant) -> Admission:
    request = parsing.parse(Operation.CHAT, json.dumps(site.chat_body()).encode())
    digest = digest_api_key(tenant.api_key)
    entry = AdmissionRequest(digest, request, "r")
    return await lanes.submit(tenant.organization.pk, entry, lambda _: None).future
