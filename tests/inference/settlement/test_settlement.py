"""Settlements are stored once, in batches, despite outages and faulty batch members."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone
from msgspec.structs import replace

from accounts.bearers import bearer_digests
from accounts.models import MOST_RATE
from billing import ledger, reviews
from billing.models import Account, Excess, Meter, Transfer
from catalog.dialects.base import Operation
from catalog.pricing import MOST_NANO, Usage
from config.api.errors import Unavailable
from config.server.batching.batcher import Batcher
from config.server.batching.waits import Blocked
from config.sql import Statement
from inference.admission.decide import AdmissionRequest
from inference.admission.estimate import Claim
from inference.exchange.gateway import Gateway
from inference.models import Generation, Journal
from inference.requests import parsing
from inference.settlement.settle import MOST_COUNT, Settlement, SettlementStore
from inference.settlement.sweeper import sweep
from inference.store import DataPlaneConnection
from inference.taps.figures import WorkerWatcher
from tests.support import factories
from tests.support.database.locks import locked, waiting
from tests.support.factories import Tenant
from tests.support.inference.site import Site, content_of, events_of
from tests.support.ledger import assert_in_order
from tests.support.machine.waiting import wait_until

# More than any cost in these tests.
HOLD = 1_000_000


def make_generation(tenant: Tenant, **fields: Any) -> Generation:
    row = factories.make_generation(tenant, status="pending", **fields)
    factories.place_hold(row, HOLD)
    row.refresh_from_db()
    return row


def settle(*batches: list[Settlement]) -> None:
    async def run() -> None:
        settlements = SettlementStore()
        for batch in batches:
            assert list(await settlements.store(batch)) == [None] * len(batch)
        await settlements.close()

    asyncio.run(run())


def facts(generation: Generation) -> tuple[Any, ...]:
    generation.refresh_from_db()
    return (
        generation.status,
        generation.prompt_tokens,
        generation.completion_tokens,
        generation.cost_nano,
        generation.error_type,
    )


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return factories.make_tenant()


def test_a_batch_is_stored_with_every_field(tenant: Tenant) -> None:
    first, second = make_generation(tenant), make_generation(tenant)
    settle(
        [
            Settlement(
                first.pk,
                "completed",
                usage=Usage(prompt=5, completion=7, cached=3, reasoning=2),
                is_estimated=True,
                cost_nano=11,
                upstream_cost_nano=13,
                finish_reason="stop",
                upstream_id="up-1",
                upstream_model="m",
                attempts=[{"status": 200}],
                latency_ms=17,
                duration_ms=19,
            ),
            Settlement(second.pk, "failed", error_type="timeout"),
        ]
    )
    first.refresh_from_db()
    assert (first.cached_tokens, first.reasoning_tokens, first.is_estimated) == (3, 2, True)
    assert (first.upstream_cost_nano, first.finish_reason) == (13, "stop")
    assert (first.upstream_id, first.upstream_model) == ("up-1", "m")
    assert (first.attempts, first.latency_ms, first.duration_ms) == ([{"status": 200}], 17, 19)
    assert facts(first) == ("completed", 5, 7, 11, None)
    assert facts(second) == ("failed", None, None, 0, "timeout")


def test_a_settlement_that_waits_for_an_account_keeps_no_heartbeat_from_its_journal(
    tenant: Tenant,
) -> None:
    generation = make_generation(tenant)

    def is_free() -> bool:
        try:
            with transaction.atomic():
                return Journal.objects.select_for_update(skip_locked=True).exists()
        finally:
            connection.close()

    async def run() -> tuple[bool, Any]:
        settlements = SettlementStore()
        item = Settlement(generation.pk, "completed", cost_nano=11)
        store = asyncio.create_task(settlements.store([item], [tenant.organization.pk]))
        while not await asyncio.to_thread(waiting):
            await asyncio.sleep(0.01)
        found = await asyncio.to_thread(is_free)
        [result] = await store
        await settlements.close()
        return found, result

    with locked(Account.objects.filter(kind="credits")):
        was_free, result = asyncio.run(run())
    assert was_free
    assert isinstance(result, Blocked)


def test_a_second_settlement_changes_nothing(tenant: Tenant) -> None:
    row = make_generation(tenant)
    first = Settlement(row.pk, "completed", usage=Usage(1, 2), cost_nano=3)
    settle([first], [replace(first, status="failed", cost_nano=9)], [first])
    assert facts(row) == ("completed", 1, 2, 3, None)


def test_a_generation_that_has_ended_costs_its_neighbours_in_the_batch_nothing(
    tenant: Tenant,
) -> None:
    """The batch leaves it out and ends its neighbours with one statement."""
    rows = [make_generation(tenant) for _ in range(3)]
    first, *others = [Settlement(row.pk, "completed", cost_nano=3) for row in rows]
    settle([first], [replace(first, status="failed", cost_nano=9), *others])
    assert [facts(row)[3] for row in rows] == [3, 3, 3]
    ended = Transfer.objects.filter(reference__in=[row.pk for row in rows[1:]])
    assert len(set(ended.values_list("ended_at", flat=True))) == 1
    assert_in_order()


def test_a_cost_beyond_the_hold_is_charged_up_to_it_and_recorded_for_review(
    tenant: Tenant,
) -> None:
    row = make_generation(tenant)
    settle([Settlement(row.pk, "completed", usage=Usage(1, 2), cost_nano=HOLD + 7)])
    assert facts(row)[3] == HOLD
    excess = Excess.objects.get()
    assert (excess.reference, excess.amount_nano, excess.status) == (row.pk, 7, "under_review")
    assert_in_order()


def test_a_settlement_of_an_unknown_generation_changes_nothing(tenant: Tenant) -> None:
    row = make_generation(tenant)
    settle([Settlement("gen-unknown", "completed")])
    assert facts(row) == ("pending", None, None, 0, None)


def test_a_settlement_after_the_sweeper_changes_nothing(tenant: Tenant) -> None:
    row = make_generation(tenant)
    Journal.objects.update(beat_at=timezone.now() - timedelta(seconds=90))
    assert sweep() == 1
    settle([Settlement(row.pk, "completed", usage=Usage(1, 2), cost_nano=3)])
    assert facts(row) == ("failed", None, None, 0, "abandoned")
    assert_in_order()


def test_a_settlement_that_the_ledger_refuses_does_not_affect_its_batch(
    tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [make_generation(tenant) for _ in range(3)]
    # This hold was never placed, so its release would make the pending amount negative.
    Generation.objects.filter(pk=rows[1].pk).update(hold_nano=HOLD * 10)
    Journal.objects.update(beat_at=timezone.now() - timedelta(seconds=90))
    settle([Settlement(row.pk, "completed", cost_nano=2) for row in rows[:2]])
    assert sweep() == 1
    assert [facts(row)[0] for row in rows] == ["completed", "pending", "failed"]
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in errors] == [
        f"the generation {rows[1].pk} cannot be settled",
        f"the generation {rows[1].pk} cannot be ended",
    ]


def test_a_meter_that_a_tenant_has_filled_keeps_no_generation_of_its_batch_waiting(
    tenant: Tenant,
) -> None:
    """A tenant states the price of its own models, and its server the usage."""
    most = 2**63 - 1
    rows = [make_generation(tenant, is_byok=True) for _ in range(2)]
    neighbour = make_generation(factories.make_tenant())
    meters = Meter.objects.filter(subject_id=rows[0].api_key_id)
    meters.update(byok=most - 5, tokens=most - 7)
    long = Usage(0, 10**15)
    dear = [
        Settlement(row.pk, "completed", usage=long, upstream_cost_nano=MOST_NANO) for row in rows
    ]
    settle([*dear, Settlement(neighbour.pk, "completed", usage=Usage(1, 2), cost_nano=3)])
    assert [facts(row)[0] for row in rows] == ["completed", "completed"]
    assert facts(neighbour) == ("completed", 1, 2, 3, None)
    meter = meters.get()
    assert (meter.byok, meter.byok_daily, meter.tokens) == (most, 5, most)
    workspace = Meter.objects.get(subject_id=rows[0].workspace_id)
    assert workspace.tokens == 2 * MOST_RATE


def test_a_meter_below_zero_keeps_no_generation_waiting(tenant: Tenant) -> None:
    """An earlier release counted what was below zero."""
    row = make_generation(tenant)
    meters = Meter.objects.filter(subject_id=row.api_key_id)
    meters.update(tokens=-9)
    settle([Settlement(row.pk, "completed", usage=Usage(5, 7))])
    assert facts(row) == ("completed", 5, 7, 0, None)
    assert meters.get().tokens == 3


def test_a_count_beyond_its_column_is_cut(tenant: Tenant) -> None:
    row, neighbour = make_generation(tenant), make_generation(tenant)
    usage = Usage(-5, 10**30, cached=-(10**30), audio=10**30, image_prompt=-5, output_images=2)
    claim = Claim(10**30, -1, 10**30, 5, 3, 0)
    settle(
        [
            Settlement(row.pk, "completed", usage=usage, claim=claim),
            Settlement(neighbour.pk, "completed", usage=Usage(1, 2)),
        ]
    )
    assert facts(row) == ("completed", 0, MOST_COUNT, 0, None)
    assert row.cached_tokens == 0
    assert row.units == {"audio": MOST_COUNT, "image_prompt": 0, "output_images": 2}
    excess = Excess.objects.get(reference=row.pk)
    assert (excess.claimed_prompt_tokens, excess.claimed_completion_tokens) == (MOST_COUNT, 0)
    assert (excess.allowed_prompt_tokens, excess.allowed_completion_tokens) == (MOST_COUNT, 5)
    assert facts(neighbour) == ("completed", 1, 2, 0, None)


@pytest.mark.parametrize(
    ("age", "beat", "swept"), [(61, None, 1), (50, None, 0), (900, 61, 1), (900, 50, 0)]
)
def test_sweep_ends_only_generations_without_a_heartbeat_for_the_lease(
    tenant: Tenant, age: int, beat: int | None, swept: int
) -> None:
    now = timezone.now()
    row = make_generation(tenant, created_at=now - timedelta(seconds=age))
    if beat is not None:
        Journal.objects.update(
            prompt_tokens=5, completion_tokens=7, beat_at=now - timedelta(seconds=beat)
        )
    assert sweep() == swept
    # 5 prompt tokens at 1,000 nano-USD and 7 completion tokens at 2,000.
    charged = ("failed", 5, 7, 19_000, "abandoned")
    voided = ("failed", None, None, 0, "abandoned")
    ended = voided if beat is None else charged
    assert facts(row) == (ended if swept else ("pending", None, None, 0, None))
    assert Journal.objects.count() == 1 - swept
    assert_in_order()


def test_sweep_uses_the_clock_of_the_database(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_generation(tenant, created_at=timezone.now())
    ahead = timezone.now() + timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: ahead)
    assert sweep() == 0
    assert facts(row)[0] == "pending"


def test_texts_of_the_upstream_are_cut_to_their_columns(tenant: Tenant) -> None:
    row = make_generation(tenant)
    settle(
        [
            Settlement(
                row.pk,
                "completed",
                usage=Usage(0, 0, output_images=1, image_variant="1024x1024\0/high" + "v" * 256),
                finish_reason="f\0" * 65,
                native_finish_reason="\udc00stop\ud800",
                upstream_id="i" * 256,
                upstream_model="\0" + "m" * 256,
                attempts=[{"requested": "a\0", "is_byok": True, "status": 200}],
            )
        ]
    )
    row.refresh_from_db()
    assert row.attempts == [{"requested": "a", "is_byok": True, "status": 200}]
    assert row.units == {"output_images": 1, "image_variant": "1024x1024/high" + "v" * 241}
    assert row.native_finish_reason == "stop"
    assert (row.finish_reason, row.upstream_id) == ("f" * 64, "i" * 255)
    assert row.upstream_model == "m" * 255


def test_a_settlement_can_do_without_each_text_of_the_upstream() -> None:
    words = dict.fromkeys(
        ("finish_reason", "native_finish_reason", "upstream_id", "upstream_model"), "x"
    )
    usage = Usage(5, 7, output_images=1)
    given = Settlement("gen-1", "completed", usage=replace(usage, image_variant="x"), **words)
    assert given.without_upstream_texts() == Settlement("gen-1", "completed", usage=usage)
    free = Settlement("gen-1", "failed")
    assert free.without_upstream_texts() == free


def test_a_cost_beyond_bigint_does_not_affect_its_batch(
    tenant: Tenant, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [make_generation(tenant) for _ in range(3)]
    costs = zip(rows, (1, 2**63, 3), strict=True)
    settle([Settlement(row.pk, "completed", cost_nano=cost) for row, cost in costs])
    assert [facts(row)[0] for row in rows] == ["completed", "pending", "completed"]
    # A busy machine may log that a statement was slow.
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert errors == [f"the generation {rows[1].pk} cannot be settled"]


@contextmanager
def database_away() -> Iterator[None]:
    """Ends the data plane's connections and refuses new ones until the block is left."""
    name = connection.settings_dict["NAME"]
    parameters = {**connection.get_connection_params(), "dbname": "postgres"}
    wanted = {
        key: parameters[key] for key in ("dbname", "user", "host", "port") if key in parameters
    }
    with psycopg.connect(**wanted, autocommit=True) as other:
        other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s AND application_name = 'causeway-data-plane'",
                (name,),
            )
            yield
        finally:
            other.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def test_a_stream_survives_a_database_outage_and_settles_after_it(site: Site) -> None:
    site.publish("sim-gated")
    answer = site.post(site.chat_body("one two", stream=True), stream=True)
    with database_away():
        refused = site.chat()
        assert refused.status_code == 503
        assert refused.headers["Retry-After"] == "1"
        assert refused.json()["error"]["metadata"] == {"error_type": "server"}
        site.upstream.release(20)
        assert content_of(events_of(answer.text)) == "You said: one two"
        assert Generation.objects.get().status == "pending"
    row = site.settled()
    assert (row.status, row.prompt_tokens, row.completion_tokens) == ("completed", 2, 4)
    site.upstream.clear()
    site.upstream.release(20)
    assert site.chat().status_code == 200


def test_a_settlement_waits_while_no_server_is_writable(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row = make_generation(tenant)
    options = connection.settings_dict["OPTIONS"]
    read_only = f"{options.get('options', '')} -c default_transaction_read_only=on".strip()

    async def run() -> None:
        settlements, plane = SettlementStore(), DataPlaneConnection()
        with monkeypatch.context() as changed:
            changed.setitem(options, "target_session_attrs", "read-write")
            changed.setitem(options, "options", read_only)
            with pytest.raises(Unavailable):
                await plane.execute(Statement("one", "SELECT 1"), [])
            item = Settlement(row.pk, "completed", usage=Usage(1, 2), cost_nano=3)
            storing = asyncio.create_task(settlements.store([item]))
            await asyncio.to_thread(wait_until, lambda: "1 settlements wait" in caplog.text)
        assert list(await storing) == [None]
        await settlements.close()
        await plane.close()

    asyncio.run(run())
    assert facts(row) == ("completed", 1, 2, 3, None)


def is_connected(pids: list[int]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", [pids])
        return cursor.fetchone() is not None


def test_a_terminated_idle_connection_is_replaced_without_an_error(site: Site) -> None:
    site.publish()
    assert site.chat().status_code == 200
    site.settled()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'causeway-data-plane'"
        )
        # How many connections there are depends on the requests before; one has just settled. The
        # service closes others itself as soon as it misses one: those are gone before their turn.
        ended = [pid for pid, _ in cursor.fetchall()]
    assert ended
    site.eventually(lambda: not is_connected(ended))
    assert site.chat().status_code == 200
    site.eventually(lambda: Generation.objects.filter(status="completed").count() == 2)


class Flush:
    """A flush that waits for ``gate`` and returns the double of each item."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None

    async def __call__(self, batch: list[int]) -> list[int | BaseException]:
        self.batches.append(batch)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [item * 2 if item >= 0 else ValueError(item) for item in batch]


def test_an_idle_batcher_does_not_wait() -> None:
    async def run() -> None:
        flush = Flush()
        batcher = Batcher(flush)
        assert await batcher.submit(1) == 2
        assert await batcher.submit(2) == 4
        assert flush.batches == [[1], [2]]

    asyncio.run(run())


def test_items_submitted_during_a_flush_form_ordered_batches() -> None:
    async def run() -> None:
        flush = Flush()
        flush.gate.clear()
        batcher = Batcher(flush, limit=3)
        first = batcher.submit(1)
        await asyncio.sleep(0)
        others = [batcher.submit(item) for item in (2, 3, 4, 5)]
        await asyncio.sleep(0)
        assert flush.batches == [[1]]
        flush.gate.set()
        assert await asyncio.gather(first, *others) == [2, 4, 6, 8, 10]
        assert flush.batches == [[1], [2, 3, 4], [5]]

    asyncio.run(run())


def test_an_exception_of_the_flush_fails_only_its_batch() -> None:
    async def run() -> None:
        flush = Flush()
        flush.error = RuntimeError("away")
        batcher = Batcher(flush)
        failed = await asyncio.gather(*map(batcher.submit, (1, 2)), return_exceptions=True)
        assert [repr(error) for error in failed] == ["RuntimeError('away')"] * 2
        flush.error = None
        assert await batcher.submit(3) == 6

    asyncio.run(run())


def test_an_exception_of_one_item_fails_only_that_item() -> None:
    async def run() -> None:
        batcher = Batcher(Flush())
        found = await asyncio.gather(*map(batcher.submit, (1, -2, 3)), return_exceptions=True)
        assert [repr(result) for result in found] == ["2", "ValueError(-2)", "6"]

    asyncio.run(run())


def test_a_cancelled_waiter_does_not_affect_others() -> None:
    async def run() -> None:
        flush = Flush()
        flush.gate.clear()
        batcher = Batcher(flush)
        left, stays = batcher.submit(-1), batcher.submit(2)
        await asyncio.sleep(0)
        left.cancel()
        flush.gate.set()
        assert await stays == 4

    asyncio.run(run())


def test_drain_waits_for_queued_and_running_items() -> None:
    async def run() -> None:
        flush = Flush()
        flush.gate.clear()
        batcher = Batcher(flush, limit=1)
        await batcher.drain()
        futures = [batcher.submit(item) for item in (1, 2)]
        draining = asyncio.create_task(batcher.drain())
        await asyncio.sleep(0.01)
        assert not draining.done()
        flush.gate.set()
        await draining
        assert [future.result() for future in futures] == [2, 4]

    asyncio.run(run())


def test_a_caller_that_leaves_during_admission_leaves_no_pending_generation(site: Site) -> None:
    site.publish()
    body = b'{"model":"acme/falcon","messages":[{"role":"user","content":""}]}'

    async def run() -> None:
        gateway = Gateway(WorkerWatcher)
        await gateway.open()
        key = await gateway.recognizer.recognize(bearer_digests(f"Bearer {site.tenant.api_key}"))
        occupancy = gateway.bulkheads.enter(key.organization_id, key.key_id)
        request = AdmissionRequest(key.digest, parsing.parse(Operation.CHAT, body), "request-1")
        await gateway._admissions.prepare(key.digest)
        admission = asyncio.create_task(gateway.admit(request, key, occupancy))
        for _ in range(5):  # until a lane has the request, and waits for the database
            await asyncio.sleep(0)
        admission.cancel()
        with pytest.raises(asyncio.CancelledError):
            await admission
        await gateway.close()

    asyncio.run(run())
    row = site.settled()
    assert (row.status, row.cost_nano, row.attempts) == ("cancelled", 0, [])
    assert Transfer.objects.get(reference=row.pk).status == "voided"
    assert_in_order()
    assert site.dialled() == []


def test_claims_that_were_written_off_never_make_a_generation_free(tenant: Tenant) -> None:
    for number in range(4):
        excess = factories.make_excess(tenant, 10**18, reference=f"gen-x{number}")
        reviews.write_off(excess, by="ann")
    # The rest up to the range of a bigint, less what the next generation costs.
    rest = factories.make_excess(tenant, 2**63 - 1 - 4 * 10**18 - 100, reference="gen-rest")
    with pytest.raises(ledger.TooMuchWrittenOff):
        reviews.write_off(rest, by="ann")
    rest.refresh_from_db()
    assert rest.status == "under_review"
    row = make_generation(tenant)
    settle([Settlement(row.pk, "completed", usage=Usage(1, 2), cost_nano=1_000)])
    assert facts(row) == ("completed", 1, 2, 1_000, None)
