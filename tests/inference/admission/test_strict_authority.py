"""Edge cases of authority: rows newer than the snapshot, and changes during admission."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection, connections, transaction
from msgspec.structs import replace

from accounts.models import ApiKey
from billing.models import Account, Meter
from catalog.models import Provider
from config.api.errors import GatewayError
from config.asgi import Application
from endpoints.models import PrivateEndpoint
from inference.admission.decide import Admission
from inference.models import Generation
from tests.support import factories
from tests.support.admission.entries import cancel, entry_of, worker
from tests.support.bulkheads.serving import make_patient, serve_in_thread
from tests.support.database.locks import waiting
from tests.support.governance import make_workspace
from tests.support.inference.site import Site, make_site
from tests.support.ledger import assert_in_order
from tests.support.simulator.behaviours import BEHAVIOURS
from tests.support.simulator.protocol import Script, Signal
from tests.support.simulator.server import Simulator


def lock_meter(site: Site) -> None:
    """Locks the key's meter: batches of the key wait for it and keep their own locks."""
    Meter.objects.select_for_update().get(subject_id=ApiKey.objects.get(name="inference").pk)


def lock_credits(site: Site) -> None:
    """Locks the tenant's credits: batches of the tenant wait before they lock any row."""
    Account.objects.select_for_update().get(organization=site.tenant.organization, kind="credits")


def in_a_thread(act: Callable[[], object]) -> Callable[[], tuple[object, int]]:
    """Returns a function that returns ``act()`` and the number of generations afterwards."""

    def run() -> tuple[object, int]:
        try:
            return act(), Generation.objects.count()
        finally:
            connections.close_all()

    return run


@pytest.fixture
def site(
    transactional_db: None,
    simulator: Simulator,
    eventually: Callable[[Callable[[], bool]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    """The site with a service of its own, whose statements wait for a lock as long as a test."""
    make_patient(monkeypatch)
    simulator.clear()
    with serve_in_thread(Application()) as address:
        yield make_site(address, simulator, eventually)


def test_a_workspace_created_after_the_snapshot_is_served_immediately(site: Site) -> None:
    site.publish()
    assert site.chat().status_code == 200
    workspace = make_workspace(site.tenant.organization)
    _, secret = ApiKey.objects.create_key(workspace=workspace, name="new")
    other = factories.make_tenant("Other")
    assert site.post(site.chat_body(), key=secret.reveal()).status_code == 200
    keys = [secret.reveal(), other.api_key] * 20
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda key: site.post(site.chat_body(), key=key), keys))
    assert [answer.status_code for answer in answers] == [200] * 40
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert Generation.objects.filter(workspace=workspace).count() == 21
    assert_in_order()


def test_a_request_that_fails_in_the_decision_does_not_affect_its_batch(site: Site) -> None:
    site.publish()
    entry = entry_of(site, max_tokens=5)
    # The parser never returns this value; it makes the decision raise an exception.
    unreadable: Any = "many"
    broken = replace(entry, request=replace(entry.request, prompt_bound=unreadable))

    async def admit() -> Sequence[Admission | BaseException]:
        async with worker() as (store, settlements):
            first, refused, last = await store.admit([entry, broken, entry])
            for one in (first, last):
                await cancel(settlements, one)
            return first, refused, last

    first, refused, last = asyncio.run(admit())
    assert isinstance(first, Admission)
    assert isinstance(last, Admission)
    assert (type(refused), str(refused)) == (GatewayError, GatewayError.message)
    stored = set(Generation.objects.values_list("pk", flat=True))
    assert stored == {first.generation_id, last.generation_id}
    assert_in_order()


def assert_change_waits(site: Site, act: Callable[[], object], result: object, status: int) -> None:
    """Asserts that a change waits for an earlier admission, and refuses the next request."""
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            lock_meter(site)
            answer = pool.submit(site.chat)
            site.eventually(lambda: waiting() == 1)
            changed = pool.submit(in_a_thread(act))
            site.eventually(lambda: waiting() == 2)
            assert (changed.done(), site.dialled()) == (False, [])
        # The change returns only after the generation is stored.
        assert changed.result() == (result, 1)
        assert answer.result().status_code == 200
    assert site.chat().status_code == status
    assert len(site.dialled()) == 1
    assert site.settled().status == "completed"
    assert_in_order()


def test_a_revocation_waits_for_an_earlier_admission(site: Site) -> None:
    site.publish()
    assert_change_waits(site, ApiKey.objects.get(name="inference").revoke, True, 401)


def test_disabling_an_endpoint_waits_for_an_earlier_admission(site: Site, settings: Any) -> None:
    settings.BYOK_FEE_PERCENT = Decimal(5)
    endpoint = PrivateEndpoint.objects.get(pk=site.own(price=factories.make_price()).pk)
    assert_change_waits(site, endpoint.disable, None, 404)


def test_delisting_a_provider_waits_for_an_earlier_admission(site: Site) -> None:
    site.publish()
    assert_change_waits(site, lambda: Provider.objects.update(is_listed=False), 1, 404)


@pytest.mark.parametrize("change", ["revoke", "disable", "delist"])
def test_a_change_does_not_wait_for_a_blocked_request(site: Site, change: str) -> None:
    """A blocked request has locked no row yet, so the change takes effect first."""
    site.publish()
    key = ApiKey.objects.get(name="inference")
    assert site.chat().status_code == 200
    site.settled()
    site.upstream.clear()
    changes: dict[str, Callable[[], object]] = {
        "revoke": key.revoke,
        "disable": lambda: key.edit(disabled=True),
        "delist": lambda: Provider.objects.update(is_listed=False),
    }
    with ThreadPoolExecutor(2) as pool:
        with transaction.atomic():
            lock_credits(site)
            answer = pool.submit(site.chat)
            site.eventually(lambda: waiting() == 1)
            assert pool.submit(in_a_thread(changes[change])).result(60)[0] in (True, 1)
        assert answer.result().status_code == (404 if change == "delist" else 401)
    assert site.dialled() == []
    assert Generation.objects.count() == 1
    assert_in_order()


def test_a_batch_that_timed_out_is_not_stored_later(site: Site, server: str) -> None:
    # The service of the other tests has the limits of the product.
    site.server = server
    site.publish()
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        lock_credits(site)
        assert pool.submit(site.chat).result().status_code == 503
        assert waiting() == 0
    site.assert_nothing_happened()
    assert site.chat().status_code == 200
    assert_in_order()


def test_a_key_can_be_disabled_while_many_workers_admit_it(site: Site) -> None:
    """Changes and admissions lock keys in the same order, so none of them deadlocks."""
    site.publish()
    key = ApiKey.objects.get(name="inference")
    entry = entry_of(site, max_tokens=5)
    seen: Counter[str] = Counter()
    stop = False

    async def work() -> None:
        async with worker() as (store, settlements):
            while not stop:
                [one] = await store.admit([entry])
                seen[type(one).__name__] += 1
                if isinstance(one, Admission):
                    await cancel(settlements, one)

    async def among(workers: int) -> None:
        await asyncio.gather(*(work() for _ in range(workers)))

    def see_more(name: str) -> None:
        before = seen[name]
        site.eventually(lambda: seen[name] > before)

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(asyncio.run, among(6))
        try:
            for _ in range(20):
                see_more("Admission")
                assert key.edit(disabled=True)
                see_more("Unauthenticated")
                assert key.edit(disabled=False)
        finally:
            stop = True
        working.result()
    # A request is refused with Unavailable if its key changes during every try.
    assert seen.keys() - {"Unavailable"} == {"Admission", "Unauthenticated"}
    assert_in_order()


def test_a_request_that_waits_for_a_revocation_is_refused(site: Site) -> None:
    site.publish()
    key = ApiKey.objects.get(name="inference")
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            key.revoke()
            # The deferred trigger bumps the version now instead of at the commit.
            connection.check_constraints()
            answer = pool.submit(site.chat)
            site.eventually(lambda: waiting() == 1)
        assert answer.result().status_code == 401
    site.assert_nothing_happened()
    assert_in_order()


def test_a_request_that_waits_for_a_disabled_endpoint_is_not_sent(site: Site) -> None:
    endpoint = PrivateEndpoint.objects.get(pk=site.own(price=factories.make_price()).pk)
    assert site.chat().status_code == 200
    site.settled()
    site.upstream.clear()
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            endpoint.disable()
            # The deferred trigger bumps the version now instead of at the commit.
            connection.check_constraints()
            answer = pool.submit(site.chat)
            site.eventually(lambda: waiting() == 1)
        assert answer.result().status_code == 404
    assert site.dialled() == []
    assert Generation.objects.count() == 1
    assert_in_order()


def test_a_fallback_that_waits_for_a_disabled_endpoint_is_not_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing: Script = (Signal.GATE, b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n")
    monkeypatch.setitem(BEHAVIOURS, "sim-taught", ("fails when it is let", lambda _: failing))
    site.own("sim-taught", price=factories.make_price("0", "0"))
    second = PrivateEndpoint.objects.get(pk=site.own(price=factories.make_price()).pk)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(site.chat)
        site.eventually(lambda: len(site.dialled()) == 1)
        with transaction.atomic():
            second.disable()
            # The deferred trigger bumps the version now instead of at the commit.
            connection.check_constraints()
            site.upstream.release()
            site.eventually(lambda: waiting() == 1)
        assert answer.result().status_code == 503
    assert len(site.dialled()) == 1
    row = site.settled()
    assert (len(row.attempts), row.cost_nano, row.private_endpoint_id == second.pk) == (1, 0, False)
    assert_in_order()
