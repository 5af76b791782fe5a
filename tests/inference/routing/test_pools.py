"""Pools: priority, weight and most requests in flight of the private endpoints of one model."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from accounts.policy import Policy
from billing.budgets import MeterReading
from billing.models import Meter
from catalog.abilities import PoolRouting
from catalog.dialects.base import Operation
from config.clocks.clock import clock
from config.local.certificates import ensure_certificates
from config.secrets import digest_api_key
from config.server.batching.waits import Suspects
from endpoints.models import PrivateEndpoint
from inference.admission.admit import AdmissionLanes, Repinned
from inference.admission.budgets import Budgets, StaleReading
from inference.admission.decide import Admission, AdmissionRequest, count_running
from inference.models import Generation
from inference.requests import parsing
from inference.routing.candidates import PrivateUnavailable
from inference.routing.health import UNKNOWN, Health, HealthState, HealthTable
from inference.routing.routes import PrivateModel, Route
from inference.settlement.settle import Settlement, SettlementStore
from tests.support import factories
from tests.support.inference.routes import credential, planned, reasons, route, subjects
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.simulator.server import Simulator

REQUESTS = 400


def place(name: str, number: int, price: str = "0", **pool: int) -> Route:
    return route(
        name, price, private=True, endpoint_id=uuid.UUID(int=number), pool=PoolRouting(**pool)
    )


def select(routes: list[Route], running: dict[str, int] | None = None, **more: Any) -> Any:
    counts = running or {}
    options = {
        "running_of": lambda each: counts.get(each.facts.provider_slug, 0),
        **more.pop("options", {}),
    }
    credentials = [credential(each.facts.provider_slug) for each in routes]
    return planned([route("pub")], routes, credentials, options=options, **more)


def order(found: Any) -> list[str]:
    return [each.route.facts.provider_slug for each in found.candidates if each.route.is_private]


def shares(routes: list[Route], running: dict[str, int] | None = None) -> Counter[str]:
    firsts = (order(select(routes, running, options={"seed": seed}))[0] for seed in range(REQUESTS))
    return Counter(firsts)


def test_the_highest_priority_serves_first() -> None:
    routes = [place("a", 1), place("b", 2, priority=2), place("c", 3, priority=1)]
    for seed in (None, 1, 2, 3):
        assert order(select(routes, options={"seed": seed})) == ["b", "c", "a"]
    # A price decides nothing between priorities, and a sort decides within one.
    routes = [place("a", 1, "1"), place("b", 2, "9", priority=1), place("c", 3, "2", priority=1)]
    assert order(select(routes, sort="price")) == ["c", "b", "a"]


def test_a_lower_priority_serves_while_the_higher_is_down_or_full() -> None:
    main, spare = place("a", 1, priority=1, max_in_flight=2), place("b", 2)
    assert order(select([main, spare], {"a": 1})) == ["a", "b"]
    full = select([main, spare], {"a": 2})
    assert (order(full), reasons(full)["a"]) == (["b"], ["max_in_flight"])
    down = subjects(main)
    health = {subject: Health(HealthState.OPEN, 1.0, None, None) for subject in down}
    found = select([main, spare], options={"health_of": lambda key: health.get(key, UNKNOWN)})
    assert order(found) == ["b", "a"]


def test_weights_share_the_requests_of_a_priority() -> None:
    routes = [place("main", 1, weight=95), place("canary", 2, weight=5)]
    assert shares(routes) == {"main": 381, "canary": 19}
    # A named provider keeps its weights.
    named = [
        order(select(routes, order=["main", "canary"], options={"seed": seed}))[0]
        for seed in range(9)
    ]
    assert {*named} == {"main"}
    one = [replace(each, facts=routes[0].facts) for each in routes]
    drawn = (select(one, order=["main"], options={"seed": seed}) for seed in range(REQUESTS))
    assert Counter(found.candidates[0].route.endpoint_id.int for found in drawn) == {1: 381, 2: 19}
    # Without a weight it is 100, and a busy endpoint keeps its share.
    routes = [place("main", 1, max_in_flight=9), place("canary", 2, weight=25)]
    assert shares(routes, {"main": 3}) == {"main": 322, "canary": 78}


def test_the_least_busy_of_equals_comes_first() -> None:
    routes = [place("a", 1, weight=50), place("b", 2, weight=50), place("c", 3, weight=50)]
    assert shares(routes, {"a": 3, "b": 1, "c": 2}) == {"b": REQUESTS}
    for seed in range(10):
        assert order(select(routes, {"a": 3, "b": 1, "c": 2}, options={"seed": seed})) == [
            "b", "c", "a",
        ]  # fmt: skip


def test_a_session_stays_however_busy_its_deployment_is() -> None:
    routes = [place("a", 1, weight=50), place("b", 2, weight=50, max_in_flight=9)]
    home = {name: order(select(routes, session=name))[0] for name in map(str, range(40))}
    assert set(home.values()) == {"a", "b"}
    for name, first in home.items():
        for seed in (1, 2):
            found = select(routes, {first: 8}, session=name, options={"seed": seed})
            assert order(found)[0] == first
        if first == "b":
            assert order(select(routes, {"b": 9}, session=name)) == ["a"]


def test_endpoints_without_a_place_are_drawn_as_before() -> None:
    routes = [
        route(name, "1", private=True, endpoint_id=uuid.UUID(int=number))
        for number, name in enumerate("abc", 1)
    ]
    for seed in range(5):
        plain = order(select(routes, {"a": 5}, options={"seed": seed}))
        assert plain == order(select(routes, options={"seed": seed}))


def test_a_full_pool_refuses_and_says_when_to_come_back() -> None:
    with pytest.raises(PrivateUnavailable) as raised:
        select(
            [place("a", 1, max_in_flight=1)],
            {"a": 1},
            policy=Policy.of(),
            private_models={"a/b": PrivateModel(frozenset(("a",)))},
        )
    assert (raised.value.status, raised.value.headers) == (503, {"Retry-After": "1"})


def test_only_a_recent_reading_says_how_busy_an_endpoint_is() -> None:
    counted = place("a", 1, max_in_flight=7)
    key = counted.endpoint_id
    none = MeterReading(key, clock.now().date(), *[0] * 10, 0, None, 0, None, 0, 0, 0, 0)
    meter = none._replace(running=5)
    unread: set[uuid.UUID] = set()
    for age, is_current, expected in ((-60, False, 6), (60, False, 1), (60, True, 6)):
        budgets = Budgets({}, {}, is_current=is_current)
        budgets.add(meter, clock.now() - timedelta(seconds=age))
        budgets.requests[key] = 1
        assert count_running(budgets, unread, counted) == expected
    full = Budgets({}, {}, is_current=False)
    full.add(meter._replace(running=7), clock.now() - timedelta(seconds=60))
    with pytest.raises(StaleReading):
        count_running(full, unread, counted)
    assert unread == set()
    assert count_running(Budgets({}, {}), unread, counted) == 0
    assert unread == {key}
    assert count_running(Budgets({}, {}), unread, route("a", private=True)) == 0
    assert unread == {key}


def pool(site: Site, endpoint: PrivateEndpoint, **routing: int) -> None:
    client = factories.client(site.tenant.management_key)
    body = {"settings": {"routing": routing}}
    answer = client.patch(f"/api/v1/private-endpoints/{endpoint.pk}", body)
    assert answer.status_code == 200, answer.content


def running(endpoint: PrivateEndpoint) -> int:
    return Meter.objects.get(subject_id=endpoint.pk).running


def test_requests_in_flight_are_counted_and_the_next_go_to_a_lower_priority(site: Site) -> None:
    main, spare = site.own("sim-gated"), site.own()
    pool(site, main, priority=1, max_in_flight=1)
    with site.post(site.chat_body(stream=True), stream=True) as first:
        assert first.status_code == 200, first.text
        assert running(main) == 1
        assert site.chat().status_code == 200
        explained = site.explain()
        [full] = [each for each in explained["excluded"] if "pool" in each]
        assert full["excluded_by"] == ["max_in_flight"]
        assert full["pool"] == {
            "priority": 1, "weight": 100, "share": 0.0, "in_flight": 1, "max_in_flight": 1,
        }  # fmt: skip
        site.upstream.release(7)
        assert b"[DONE]" in first.content
    site.eventually(lambda: running(main) == 0)
    served = Generation.objects.order_by("created_at").values_list("private_endpoint", flat=True)
    assert list(served) == [main.pk, spare.pk]
    [candidate, _] = site.explain()["candidates"]
    assert candidate["pool"] == {
        "priority": 1, "weight": 100, "share": 1.0, "in_flight": 0, "max_in_flight": 1,
    }  # fmt: skip


def test_no_more_requests_run_than_the_owner_allows(site: Site) -> None:
    """The public endpoint of the model gets none of them."""
    main = site.own("sim-held")
    site.publish()
    pool(site, main, max_in_flight=3)
    with ThreadPoolExecutor(8) as threads:
        pending = [threads.submit(site.chat) for _ in range(8)]
        site.eventually(lambda: sum(each.done() for each in pending) == 5)
        assert running(main) == 3
        site.upstream.release(3)
        answers = [each.result(60) for each in pending]
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [503] * 5
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["error"]["metadata"]["error_type"] == "provider_unavailable"
    excluded = refused.json()["error"]["metadata"]["excluded"]
    assert {tuple(each["excluded_by"]) for each in excluded} == {
        ("max_in_flight",), ("private_only",),
    }  # fmt: skip
    assert len(site.dialled()) == 3
    site.eventually(lambda: running(main) == 0)
    PrivateEndpoint.objects.filter(pk=main.pk).update(upstream_model_id="sim-echo")
    assert site.chat().status_code == 200


def test_a_dead_deployment_of_a_pool_is_replaced_by_the_others(site: Site) -> None:
    dead, alive = site.own("sim-connect-reset"), site.own()
    pool(site, dead, priority=1, weight=10)
    pool(site, alive, max_in_flight=5)
    assert [site.chat().status_code for _ in range(3)] == [200] * 3
    assert set(Generation.objects.values_list("private_endpoint", flat=True)) == {alive.pk}
    site.eventually(lambda: (running(dead), running(alive)) == (0, 0))


def test_of_a_slow_a_full_and_a_dying_server_every_request_is_answered(site: Site) -> None:
    """Three servers of their own: the full one is preferred, then the dying one."""
    certificates = ensure_certificates(Path(os.environ["CAUSEWAY_TEST_DIR"]) / "tls")
    site.publish()
    with ExitStack() as alive, ThreadPoolExecutor(3) as threads:
        slow, full = (alive.enter_context(Simulator(certificates).run_in_thread()) for _ in "ab")
        at_slow = site.own("sim-held", base_url=slow.base_url)
        at_full = site.own("sim-held", base_url=full.base_url)
        pool(site, at_full, priority=2, max_in_flight=1)
        with Simulator(certificates).run_in_thread() as dying:
            at_dying = site.own(base_url=dying.base_url)
            pool(site, at_dying, priority=1)
            for server in (slow, full, dying):
                server.clear()
            waiting = [threads.submit(site.chat)]
            assert full.wait_until(lambda: full.total_requests == 1)
            assert running(at_full) == 1
            assert site.chat().status_code == 200
            assert [server.total_requests for server in (slow, full, dying)] == [0, 1, 1]
        waiting += [threads.submit(site.chat) for _ in range(2)]
        assert slow.wait_until(lambda: slow.total_requests == 2)
        [excluded] = [each for each in site.explain()["excluded"] if "pool" in each]
        assert (excluded["excluded_by"], excluded["pool"]["in_flight"]) == (["max_in_flight"], 1)
        slow.release(2)
        full.release(1)
        assert [each.result(60).status_code for each in waiting] == [200] * 3
        assert (slow.total_requests, full.total_requests) == (2, 1)
    # None of them was sent to the public endpoint of the model.
    assert site.dialled() == []
    served = Counter(Generation.objects.values_list("private_endpoint", flat=True))
    assert served == {at_full.pk: 1, at_dying.pk: 1, at_slow.pk: 2}
    site.eventually(lambda: [running(each) for each in (at_full, at_dying)] == [0, 0])


def test_a_fallback_is_counted_where_it_falls_to(site: Site) -> None:
    """The endpoint that failed is free again; a fallback that finds no room is not sent."""
    dead, spare = site.own("sim-status-500"), site.own("sim-held")
    site.publish()
    pool(site, dead, priority=1, max_in_flight=5)
    pool(site, spare, max_in_flight=1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(site.chat)
        site.eventually(lambda: len(site.dialled()) == 2)
        assert (running(dead), running(spare)) == (0, 1)
        full = site.chat()
        # Its own endpoint's failure, and nothing was sent where there is no room.
        assert (full.status_code, full.json()["error"]["code"]) == (502, 502)
        assert len(site.dialled()) == 3
        site.eventually(lambda: (running(dead), running(spare)) == (0, 1))
        site.upstream.release(1)
        assert waiting.result(60).status_code == 200
    site.eventually(lambda: (running(dead), running(spare)) == (0, 0))
    failed, served = Generation.objects.order_by("status").reverse()
    assert (failed.private_endpoint, failed.limit_subjects) == (dead, [dead.pk])
    assert (served.private_endpoint, served.limit_subjects) == (spare, [spare.pk])
    assert_in_order()


def test_two_workers_count_the_fallbacks_of_a_pool_together(site: Site) -> None:
    main, spare = site.own(), site.own()
    pool(site, main, priority=1)
    pool(site, spare, max_in_flight=1)
    site.publish()
    site.allow_fallback()

    async def run() -> None:
        workers = [AdmissionLanes(HealthTable(), Suspects()) for _ in "ab"]
        settlements = SettlementStore()
        request = parsing.parse(Operation.CHAT, json.dumps(site.chat_body()).encode())
        entry = AdmissionRequest(digest_api_key(site.tenant.api_key), request, "r")
        organization_id = site.tenant.organization.pk
        admissions = [
            await each.submit(organization_id, entry, lambda _: None).future for each in workers
        ]
        first, second = admissions
        candidates = [item.candidate for item in first.candidates]
        assert [each.route.endpoint_id for each in candidates[:2]] == [main.pk, spare.pk]

        async def move(worker: int, admission: Admission, place: int) -> Repinned:
            return await workers[worker].repin(admission, candidates[place])

        assert await count() == (2, 0)
        assert await move(0, first, 1) is Repinned.MOVED
        assert await count() == (1, 1)
        # A repetition, whose first result was lost, counts nothing.
        assert await move(0, first, 1) is Repinned.MOVED
        assert await move(1, second, 1) is Repinned.FULL
        assert await count() == (1, 1)
        # To the public endpoint, which is in no pool.
        assert await move(0, first, 2) is Repinned.MOVED
        assert await count() == (1, 0)
        assert await move(1, second, 1) is Repinned.MOVED
        assert await count() == (0, 1)
        both = [Settlement(each.generation_id, "cancelled") for each in admissions]
        await settlements.store(both)
        assert await count() == (0, 0)
        for each in (*workers, settlements):
            await each.close()

    def read() -> tuple[int, int]:
        try:
            return running(main), running(spare)
        finally:
            connections.close_all()

    async def count() -> tuple[int, int]:
        return await asyncio.to_thread(read)

    asyncio.run(run())
    assert_in_order()


@pytest.mark.parametrize(
    ("routing", "field"),
    [
        ({"priority": -1}, "settings.routing.priority"),
        ({"priority": 1001}, "settings.routing.priority"),
        ({"weight": 0}, "settings.routing.weight"),
        ({"weight": 1.5}, "settings.routing.weight"),
        ({"max_in_flight": 0}, "settings.routing.max_in_flight"),
        ({"max_in_flight": "9"}, "settings.routing.max_in_flight"),
        ({"max_in_flight": 10**7}, "settings.routing.max_in_flight"),
        ({"share": 1}, "settings.routing.share"),
    ],
)
def test_other_values_are_refused_by_name(db: None, routing: dict[str, Any], field: str) -> None:
    tenant = factories.make_tenant()
    endpoint = factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    before = PrivateEndpoint.objects.values().get()
    client = factories.client(tenant.management_key)
    path = f"/api/v1/private-endpoints/{endpoint.pk}"
    answer = client.patch(path, {"settings": {"routing": routing}})
    assert answer.status_code == 400, answer.content
    assert list(answer.json()["error"]["metadata"]["fields"]) == [field]
    assert PrivateEndpoint.objects.values().get() == before
    assert not Meter.objects.filter(subject_id=endpoint.pk).exists()
    kept = client.patch(path, {"settings": {"routing": {"weight": 5, "max_in_flight": 8}}})
    expected = {"priority": None, "weight": 5, "max_in_flight": 8}
    assert kept.json()["data"]["settings"]["routing"] == expected
    assert Meter.objects.get(subject_id=endpoint.pk).running == 0
