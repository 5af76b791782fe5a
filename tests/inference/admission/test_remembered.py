"""Remembered readings save statements and never permit more than fresh ones."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone
from hypothesis import given, settings
from hypothesis import strategies as st

from accounts.models import ApiKey, Guardrail, LimitReset
from accounts.policy import Policy
from billing.budgets import Budget, MeterReading, Scope
from billing.models import Account, Meter
from billing.rate_limits import LimitScope, Rate, RateRule
from catalog.pricing import NANO
from config.api.errors import GatewayError, PaymentRequired, Unauthenticated, Unavailable
from config.clocks.clock import clock
from config.database.pool import find_pool
from config.secrets import digest_api_key
from config.server.batching.waits import Blocked
from inference.admission import authority
from inference.admission.authority import AuthorityReader
from inference.admission.budgets import Budgets
from inference.admission.copies.organizations import OrganizationCopy
from inference.admission.copies.snapshots import Snapshots
from inference.admission.decide import Admission, AdmissionRequest
from inference.admission.governance import GuardrailRules, OrganizationRules, WorkspaceRules
from inference.models import Generation
from inference.settlement.settle import Settlement
from inference.store import DataPlaneConnection, run_in_thread
from tests.support import factories
from tests.support.admission.entries import cancel, entry_of, worker
from tests.support.governance import make_guardrail, make_key, make_member
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order
from tests.support.machine.waiting import wait_until
from tests.support.suite.tiers import count_examples

SUBJECT = UUID(int=1)
ORGANIZATION = UUID(int=2)
LIMIT = 12


def admitted(site: Site, count: int, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> list[int]:
    """Admits ``count`` batches of one request; returns the number of statements of each.

    Statements of the site's own service, which runs on another event loop, are not counted.
    """
    entry = entry_of(site, **fields)
    statements: list[int] = []
    loops: list[asyncio.AbstractEventLoop] = []
    execute = DataPlaneConnection.execute

    async def counted(self: DataPlaneConnection, *arguments: Any) -> list[Sequence[Any]]:
        if asyncio.get_running_loop() is loops[0]:
            statements[-1] += 1
        return await execute(self, *arguments)

    async def run() -> None:
        loops.append(asyncio.get_running_loop())
        async with worker() as (store, settlements):
            for _ in range(count):
                monkeypatch.setattr(DataPlaneConnection, "execute", counted)
                statements.append(0)
                [found] = await store.admit([entry])
                monkeypatch.undo()
                if isinstance(found, Admission):
                    await cancel(settlements, found)
                elif isinstance(found, GatewayError):
                    statements[-1] = -statements[-1]

    asyncio.run(run())
    return statements


def test_a_known_key_takes_one_statement(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.publish()
    # The first also reads the catalogue, with six statements.
    assert admitted(site, 3, monkeypatch) == [9, 1, 1]


def test_a_known_key_with_budgets_takes_one_statement(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    ApiKey.objects.filter(name="inference").update(limit_nano=10**12, limit_reset="daily")
    assert admitted(site, 3, monkeypatch, max_tokens=5) == [9, 1, 1]


def test_a_refusal_reads_everything_from_the_database(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal repeats both statements."""
    site.publish(price=factories.make_price("1", "1"))
    ApiKey.objects.filter(name="inference").update(limit_nano=10**9)
    assert admitted(site, 3, monkeypatch, max_tokens=5000) == [-8, -2, -2]


def test_a_stored_generation_is_admitted_if_another_of_its_batch_fails(site: Site) -> None:
    site.publish()
    entries = [entry_of(site), entry_of(site, factories.make_tenant().api_key)]
    given = connection.get_connection_params()
    where = {name: given[name] for name in ("host", "port", "user", "password") if name in given}
    where["database"] = given["dbname"]
    admitted: list[Any] = []

    async def run() -> None:
        async with worker() as (store, settlements):
            for found in await store.admit(entries):
                await cancel(settlements, found)
            # The second key has changed, and the lock prevents a new reading.
            changing, blocking = [await asyncpg.connect(**where) for _ in range(2)]
            text = "UPDATE accounts_apikey SET name = 'another' WHERE digest = $1"
            await changing.execute(text, entries[1].key_digest)
            async with blocking.transaction():
                await blocking.execute("LOCK TABLE accounts_memberassignment")
                admitted.extend(await store.admit(entries))
            for each in (changing, blocking):
                await each.close()

    asyncio.run(run())
    first, second = admitted
    assert isinstance(first, Admission)
    assert isinstance(second, Unavailable)
    [row] = Generation.objects.filter(status="pending")
    assert row.pk == first.generation_id


def test_a_reading_that_began_before_all_was_forgotten_is_not_remembered(site: Site) -> None:
    """Its versions are of another state of the database, and come again."""
    digest = digest_api_key(site.tenant.api_key)

    async def run() -> list[bool]:
        reader = AuthorityReader(Snapshots())
        # A connection is opened for the first reading alone, after it began.
        find_pool().on_open = reader.forget
        known = []
        for _ in range(2):
            assert (await reader.read([digest])).keys() == {digest}
            known.append(reader.recall(digest) is not None)
        await reader.close()
        return known

    assert asyncio.run(run()) == [False, True]


def test_merged_rules_of_many_names_count_as_many_keys(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of 100 names takes the room of two keys, and one that keys share counts once."""
    monkeypatch.setattr(authority, "_REMEMBERED", 7)
    keys = [make_key(site.tenant, f"key {number}") for number in range(4)]
    guardrails = [make_guardrail(site.tenant.workspace, name=f"list {each}") for each in "abc"]
    for number, guardrail in enumerate(guardrails):
        names = [f"acme/{number}-{each}" for each in range(100)]
        Guardrail.objects.filter(pk=guardrail.pk).update(ignored_models=names)

    async def run(lists: Sequence[int]) -> list[bool]:
        """Governs a key for each list; returns whether each of them is remembered at the end."""
        reader = AuthorityReader(Snapshots())
        used = keys[: len(lists)]
        readings = await reader.read([key.digest for key in used])
        found = [readings[key.digest].authority for key in used]
        catalog = reader.snapshots.catalog
        first = [reader.govern(each, catalog) for each in found]
        again = [reader.govern(each, catalog) for each in found]
        await reader.close()
        return [one is other for one, other in zip(first, again, strict=True)]

    for lists, remembered in (([0, 0, 0, 0], [True] * 4), ([0, 1, 2], [False, False, False])):
        for number, guardrail in enumerate(guardrails):
            given = [key for key, each in zip(keys, lists, strict=False) if each == number]
            guardrail.assign_keys(given, by="test")
        assert asyncio.run(run(lists)) == remembered


def test_the_copy_of_an_organization_keeps_few_merged_rules() -> None:
    ids = [UUID(int=number) for number in range(300)]
    guardrails = {
        each: GuardrailRules(each, Policy.of(ignore=[f"provider-{each.int}"])) for each in ids
    }
    rules = OrganizationRules(Policy(), {ORGANIZATION: WorkspaceRules(SUBJECT)}, guardrails)
    found = [rules.for_key(ORGANIZATION, None, each) for each in ids]
    assert rules.merged_count == 300 - 256
    assert rules.for_key(ORGANIZATION, None, ids[299]) is found[299]
    assert rules.for_key(ORGANIZATION, None, ids[0]) == found[0]
    assert rules.merged_count == 300 - 256 + 1


def test_an_organization_without_funds_costs_its_neighbours_in_the_batch_nothing(
    site: Site,
) -> None:
    """The batch leaves out the organization and stores its neighbours with one statement."""
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    tenants = [site.tenant, factories.make_tenant("Poor"), factories.make_tenant("Rich")]
    entries = [entry_of(site, each.api_key, max_tokens=16) for each in tenants]
    organizations = [each.organization.pk for each in tenants]
    funds = Account.objects.filter(kind="credits").order_by("organization__name")
    spent = factories.make_generation(tenants[1], status="pending")

    def spend_all() -> None:
        factories.place_hold(spent, funds.get(organization=tenants[1].organization).available)

    async def run() -> tuple[list[Any], Any]:
        async with worker() as (store, settlements):
            for found in await store.admit(entries, organizations):
                await cancel(settlements, found)
            # The worker remembers readings of all three, by which each of them can pay.
            await run_in_thread(spend_all)
            batch = await store.admit(entries, organizations)
            [alone] = await store.admit(entries[1:2], organizations[1:2])
            return list(batch), alone

    (first, poor, last), alone = asyncio.run(run())
    assert isinstance(first, Admission)
    assert isinstance(last, Admission)
    assert type(poor) is Blocked
    assert isinstance(alone, PaymentRequired)
    hold = 1000 * (entries[0].request.prompt_bound + 16)
    stored = Generation.objects.filter(status="pending").exclude(pk=spent.pk)
    holds = dict.fromkeys((first.generation_id, last.generation_id), hold)
    assert dict(stored.values_list("pk", "hold_nano")) == holds
    assert len(set(stored.values_list("created_at", flat=True))) == 1
    thousand = 1_000 * NANO
    assert [each.available for each in funds] == [thousand - hold, 0, thousand - hold]
    assert [each.pending_debits for each in funds] == [hold, thousand, hold]
    assert_in_order()


@pytest.mark.parametrize("change", ["limit", "expiry", "disabled", "member"])
def test_a_change_of_a_remembered_key_takes_effect_on_the_next_request(
    site: Site, change: str
) -> None:
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    key = ApiKey.objects.get(name="inference")
    key.creator = make_member(site.tenant.organization)
    key.save_fields("creator")
    assert [site.chat().status_code for _ in range(2)] == [200, 200]
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    keys = ApiKey.objects.filter(pk=key.pk)
    match change:
        case "limit":
            keys.update(limit_nano=1)
        case "expiry":
            keys.update(expires_at=datetime(2020, 1, 1, tzinfo=UTC))
        case "disabled":
            keys.update(disabled=True)
        case "member":
            closed = make_guardrail(site.tenant.workspace, allowed_providers=["other"])
            closed.assign_members([key.creator], by="test")
    assert site.chat().status_code in (401, 403, 404)
    assert len(site.dialled()) == 2

    if change == "member":
        closed.unassign_members([key.creator])
    else:
        keys.update(limit_nano=None, expires_at=None, disabled=False)
    assert site.chat().status_code == 200


def test_a_spent_budget_refuses_free_requests_in_every_worker(site: Site) -> None:
    endpoint = site.publish(price=factories.make_price("0", "0"))
    ApiKey.objects.filter(name="inference").update(limit_nano=10**6)
    entry = entry_of(site)

    def spend_the_limit() -> None:
        factories.make_generation(site.tenant, cost_nano=10**6, model_endpoint=endpoint)

    async def run() -> list[str]:
        found = []
        async with worker() as (first, settlements), worker() as (second, _):
            for store, is_last in ((first, False), (second, True), (first, False), (second, False)):
                [one] = await store.admit([entry])
                found.append(type(one).__name__)
                if isinstance(one, Admission):
                    await settlements.store([Settlement(one.generation_id, "completed")])
                if is_last:
                    await run_in_thread(spend_the_limit)
        return found

    assert asyncio.run(run()) == ["Admission", "Admission", "LimitSpent", "LimitSpent"]


def test_two_workers_run_no_more_requests_at_once_than_a_limit_allows(site: Site) -> None:
    site.publish()
    ApiKey.objects.get(name="inference").edit(rate_limits={"concurrent_requests": 2})
    entry = entry_of(site)

    async def run() -> list[str]:
        async with worker() as (first, settlements), worker() as (second, _):
            # From then on the second worker remembers one request that runs.
            [over] = await second.admit([entry])
            assert isinstance(over, Admission)
            await settlements.store([Settlement(over.generation_id, "completed")])
            found = [(await store.admit([entry]))[0] for store in (first, first, second)]
            return [type(one).__name__ for one in found]

    assert asyncio.run(run()) == ["Admission", "Admission", "RateLimited"]
    counted = Meter.objects.filter(requests__gt=0).values_list("running", "requests")
    assert set(counted) == {(2, 3)}


def test_a_late_batch_counts_in_the_newer_minute_of_the_meter(site: Site) -> None:
    """A batch of the previous minute may wait for a batch of the current one."""
    site.publish()
    assert site.chat().status_code == 200
    site.settled()
    ahead = timezone.now().replace(second=0, microsecond=0) + timedelta(minutes=2)
    key = ApiKey.objects.get(name="inference")
    meters = Meter.objects.filter(subject_id=key.pk)
    meters.update(minute=ahead, requests=7, requests_before=3)
    assert site.chat().status_code == 200
    assert meters.values_list("minute", "requests", "requests_before").get() == (ahead, 8, 3)


def test_an_expired_key_is_refused_by_the_clock_of_the_database(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that remembers the key, and whose clock is behind, does not know that it expired."""
    site.publish()
    keys, entry = ApiKey.objects.filter(name="inference"), entry_of(site)

    def is_expired() -> bool:
        return keys.annotate(now=Now()).filter(expires_at__lt=F("now")).exists()

    def expire_in(seconds: int) -> None:
        keys.update(expires_at=Now() + timedelta(seconds=seconds))

    async def run() -> Any:
        async with worker() as (store, settlements):
            # A busy machine may need more than the first of these to admit one request.
            for seconds in (2, 20, 200):
                await run_in_thread(expire_in, seconds)
                [known] = await store.admit([entry])
                if isinstance(known, Admission):
                    break
            await cancel(settlements, known)
            await run_in_thread(partial(wait_until, is_expired, seconds=300))
            monkeypatch.setattr(clock, "_ahead", clock.time() - time.monotonic() - 3_600)
            [found] = await store.admit([entry])
            return found

    assert isinstance(asyncio.run(run()), Unauthenticated)


def settled(meter: MeterReading, now: datetime, cost: int, hold: int) -> MeterReading:
    """Returns the meter after a settlement."""
    today = now.date()
    meter = rolled(meter, now.replace(second=0, microsecond=0))
    day = max(meter.day, today)
    starts = {
        "cost_daily": today,
        "cost_weekly": today - timedelta(days=today.weekday()),
        "cost_monthly": today.replace(day=1),
    }
    periods = {
        name: (getattr(meter, name) if meter.day >= start else 0) + cost
        for name, start in starts.items()
    }
    return meter._replace(
        day=day,
        cost=meter.cost + cost,
        held_cost=meter.held_cost - hold,
        running=meter.running - 1,
        tokens=meter.tokens + cost,
        held_tokens=meter.held_tokens - hold,
        **periods,
    )


def requested(meter: MeterReading, now: datetime, hold: int) -> MeterReading:
    """Returns the meter after an admission."""
    minute = now.replace(second=0, microsecond=0)
    if meter.minute is not None:
        minute = max(minute, meter.minute)
    return rolled(meter, minute)._replace(
        held_cost=meter.held_cost + hold,
        requests=meter.requests + 1,
        running=meter.running + 1,
        held_tokens=meter.held_tokens + hold,
    )


def rolled(meter: MeterReading, minute: datetime) -> MeterReading:
    """Returns the meter at the beginning of a minute, which may begin a day."""
    if meter.minute is not None and meter.minute >= minute:
        return meter
    is_same_day = meter.minute is not None and meter.minute.date() == minute.date()
    return meter._replace(
        minute=minute,
        requests_before=meter.requests,
        tokens_before=meter.tokens,
        requests_before_day=meter.requests_before_day if is_same_day else meter.requests,
    )


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["wait", "request", "settle"]),
        st.integers(0, 6),
        st.sampled_from([1, 25, 70, 3_600, 90_000, 700_000, 3_000_000]),
    ),
    max_size=12,
)


@settings(max_examples=count_examples(1500), deadline=None)
@given(
    EVENTS,
    EVENTS,
    st.sampled_from([None, *LimitReset]),
    st.integers(0, 6),
    st.dictionaries(st.sampled_from(Rate), st.integers(1, 6)),
)
def test_a_stale_reading_never_permits_what_a_fresh_one_refuses(
    earlier: list[tuple[str, int, int]],
    later: list[tuple[str, int, int]],
    reset: LimitReset | None,
    hold: int,
    limits: dict[Rate, int],
) -> None:
    now = datetime(2026, 1, 30, 23, 58, 50, tzinfo=UTC)
    meter = MeterReading(SUBJECT, now.date(), *[0] * 10, 0, None, 0, None, 0, 0, 0, 0)
    rule = RateRule(LimitScope.API_KEY, SUBJECT, limits)
    held: list[int] = []

    def happen(events: list[tuple[str, int, int]]) -> None:
        nonlocal now, meter
        for kind, amount, seconds in events:
            if kind == "wait":
                now += timedelta(seconds=seconds)
            elif kind == "request":
                meter = requested(meter, now, amount)
                held.append(amount)
            elif held:
                taken = held.pop(0)
                meter = settled(meter, now, amount, taken)

    def decided(reading: MeterReading, at: datetime) -> Budgets | None:
        budgets = Budgets({ORGANIZATION: 10**9}, {SUBJECT: reading}, now=at)
        budget = Budget(Scope.API_KEY, SUBJECT, LIMIT, reset, include_byok=False)
        try:
            budgets.require_rates([rule], hold)
            [rest] = budgets.find_left([budget])
        except GatewayError:
            return None
        if hold and rest.nano < hold:
            return None
        holds = {"credits_nano": hold, "upstream_nano": 0, "held_tokens": hold}
        budgets.take(ORGANIZATION, [SUBJECT], [rest], rules=[rule], **holds)
        return budgets

    happen(earlier)
    old = decided(meter, now)
    happen(later)
    if old is None or decided(meter, now) is not None:
        return
    ceiling = old.ceilings[SUBJECT]
    used = meter.cost + meter.held_cost
    assert (
        used > ceiling.cost
        or meter.cost > ceiling.spent
        or meter.requests > ceiling.requests
        or meter.tokens + meter.held_tokens > ceiling.tokens
        or meter.running > ceiling.running
    )


def test_only_the_latest_copy_of_an_organization_stays_in_memory(site: Site) -> None:
    """A key that is used once must not keep the copy of its time: that one has every endpoint."""
    site.publish()
    organization = site.tenant.organization
    versions: list[int] = []

    def make_next_entry() -> AdmissionRequest:
        organization.edit(ignored_providers=[f"other-{len(versions)}"])
        organization.refresh_from_db()
        versions.append(organization.routing_version)
        _, key = ApiKey.objects.create_key(workspace=site.tenant.workspace, name="once")
        return entry_of(site, key.reveal())

    async def run() -> list[int]:
        async with worker() as (store, settlements):
            for _ in range(3):
                [found] = await store.admit([await run_in_thread(make_next_entry)])
                await cancel(settlements, found)
            del found
            gc.collect()
            return [each.version for each in gc.get_objects() if isinstance(each, OrganizationCopy)]

    kept = asyncio.run(run())
    assert len(set(versions)) == 3
    assert [version for version in versions if version in kept] == versions[-1:]
