"""Exact limits under concurrent requests: two workers share one ledger, over real sockets."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import requests
from django.db import connection, connections
from django.utils import timezone

from accounts.models import ApiKey, BudgetInterval, Guardrail
from billing import ledger
from billing.models import Account, Meter, Transfer
from config import sql
from inference.models import Generation
from inference.settlement.settle import SETTLE, Settlement, settlement_parameters
from inference.settlement.sweeper import sweep
from tests.support import factories
from tests.support.admission.entries import parsed
from tests.support.factories import Tenant
from tests.support.governance import make_guardrail, make_member, make_workspace
from tests.support.inference.site import CHAT, Site
from tests.support.ledger import assert_in_order
from tests.support.machine.waiting import wait_until
from tests.support.processes import Served, serve
from tests.support.suite.tiers import count_examples

Together = Callable[..., list[Any]]


@pytest.fixture
def held(site: Site) -> Site:
    """Publishes a model that holds each answer until a release; a token costs 1,000 nano-USD."""
    site.publish("sim-held", price=factories.make_price("0.000001", "0.000001"))
    return site


def hold_of(body: dict[str, Any]) -> int:
    request = parsed(body)
    return 1000 * (request.prompt_bound + (request.max_tokens or 0))


def ask(served: Served, body: dict[str, Any], key: str) -> requests.Response:
    return requests.post(
        f"{served.address}{CHAT}",
        json=body,
        headers={"Authorization": f"Bearer {key}"},
        timeout=120,
    )


def ask_at_once(
    site: Site, served: Served, body: dict[str, Any], keys: list[str], admitted: int
) -> list[requests.Response]:
    """Sends one request per key; releases the admitted ones once all have been decided."""
    with ThreadPoolExecutor(len(keys)) as pool:
        asked = [pool.submit(ask, served, body, key) for key in keys]
        wait_until(lambda: sum(future.done() for future in asked) >= len(keys) - admitted)
        wait_until(lambda: len(site.dialled()) >= admitted)
        assert Generation.objects.filter(status="pending").count() == admitted
        assert_in_order()
        site.upstream.release(admitted)
        return [future.result() for future in asked]


def test_credits_for_100_holds_admit_100_of_320_requests(
    held: Site, running_service: Served
) -> None:
    body = held.chat_body(max_tokens=16)
    poor = factories.make_tenant("Poor", credits_usd=0)
    ledger.grant(poor.organization.pk, 100 * hold_of(body), actor="test")
    account = Account.objects.filter(organization=poor.organization, kind="credits")
    seen: list[int] = []

    with ThreadPoolExecutor(320) as pool:
        asked = [pool.submit(ask, running_service, body, poor.api_key) for _ in range(320)]
        wait_until(lambda: sum(future.done() for future in asked) >= 220)
        wait_until(lambda: len(held.dialled()) >= 100)
        seen.append(account.get().available)
        assert Transfer.objects.pending().count() == 100
        assert_in_order()
        held.upstream.release(100)
        statuses = Counter(future.result().status_code for future in asked)

    assert (statuses, seen) == ({200: 100, 402: 220}, [0])
    wait_until(lambda: not Transfer.objects.pending().exists())
    assert Generation.objects.filter(status="completed", cost_nano=6000).count() == 100
    assert account.get().available == 100 * (hold_of(body) - 6000)
    assert_in_order()


def test_concurrent_settlements_of_a_generation_charge_it_once(
    tenant_of_threads: Tenant, together: Together
) -> None:
    row = factories.make_generation(tenant_of_threads, status="pending")
    factories.place_hold(row, 7)
    parameters = settlement_parameters([Settlement(row.pk, "completed", cost_nano=7)])

    def settle() -> int:
        with connection.cursor() as cursor:
            sql.execute(cursor, SETTLE, parameters)
            return len(cursor.fetchall())

    assert sorted(together(*[settle] * 32)) == [0] * 31 + [1]
    assert Account.objects.get(organization=row.organization, kind="usage").posted_credits == 7
    assert Meter.objects.get(subject_id=row.api_key_id).cost == 7
    assert_in_order()


@pytest.fixture
def tenant_of_threads(transactional_db: None) -> Tenant:
    return factories.make_tenant()


def limited(scope: str, limit: int) -> list[str]:
    """Creates two keys of a new tenant, limits one or both together; returns the limited keys."""
    tenant = factories.make_tenant(scope)
    workspace = tenant.workspace
    member = make_member(tenant.organization)
    # A workspace's guardrail limits the key's creator if the key has one, otherwise the key.
    creator = None if scope == "workspace_default_key" else member
    made = [
        ApiKey.objects.create_key(workspace=workspace, name=name, creator=creator)
        for name in ("a", "b")
    ]
    keys = [secret.reveal() for _, secret in made]
    budget = {"limit_nano": limit, "reset_interval": "monthly"}
    match scope:
        case "key_limit":
            made[0][0].edit(limit_nano=limit)
            return keys[:1]
        case "workspace":
            workspace.set_budget(BudgetInterval.DAILY, limit_nano=limit)
        case "member":
            make_guardrail(workspace, **budget).assign_members([member], by="test")
        case "api_key":
            make_guardrail(workspace, **budget).assign_keys([made[0][0]], by="test")
            return keys[:1]
        case "workspace_default_member" | "workspace_default_key":
            Guardrail.objects.edit_workspace_default(workspace, **budget)
            return keys if creator else keys[:1]
    return keys


def test_concurrent_requests_never_exceed_a_budget(held: Site, running_service: Served) -> None:
    body = held.chat_body(max_tokens=16)
    hold = hold_of(body)
    scopes = ("key_limit", "api_key", "workspace_default_key")
    for scope in (*scopes, "member", "workspace_default_member", "workspace"):
        held.upstream.clear()
        keys = limited(scope, 20 * hold + hold // 2)
        answers = ask_at_once(held, running_service, body, (keys * 64)[:64], 20)
        assert Counter(answer.status_code for answer in answers) == {200: 20, 402: 44}, scope
        refused = [answer for answer in answers if answer.status_code == 402]
        assert {each.json()["error"]["metadata"]["limit"] for each in refused} == {scope}
        wait_until(lambda: not Generation.objects.filter(status="pending").exists())
    assert_in_order()


def test_budgets_of_one_member_in_two_workspaces_do_not_block_each_other(
    site: Site, running_service: Served
) -> None:
    site.publish(price=factories.make_price("0.000001", "0.000001"))
    tenant = site.tenant
    member, other = make_member(tenant.organization), make_workspace(tenant.organization)
    body = site.chat_body(max_tokens=16)
    secrets = []
    for workspace, limit in ((tenant.workspace, hold_of(body)), (other, 10**12)):
        Guardrail.objects.edit_workspace_default(
            workspace, limit_nano=limit, reset_interval="monthly"
        )
        _, secret = ApiKey.objects.create_key(workspace=workspace, name="k", creator=member)
        secrets.append(secret.reveal())
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda key: (key, ask(running_service, body, key)), secrets * 32))
    assert {answer.status_code for key, answer in answers if key == secrets[1]} == {200}
    assert {answer.status_code for key, answer in answers if key == secrets[0]} <= {200, 402, 403}
    wait_until(lambda: not Generation.objects.filter(status="pending").exists())
    assert_in_order()


def test_all_workers_share_the_rate_limit_of_a_key(site: Site) -> None:
    site.publish()
    with serve("--workers", "2", REQUESTS_PER_MINUTE="25") as served:
        wait_until(lambda: timezone.now().second < 45)
        body = site.chat_body()

        def chat(number: int) -> tuple[int, str]:
            # Refused requests do not count: every other request names an unknown model.
            wanted = {**body, "model": "no/such"} if number % 2 else body
            answer = ask(served, wanted, site.tenant.api_key)
            return answer.status_code, answer.headers.get("Retry-After", "")

        with ThreadPoolExecutor(32) as pool:
            found = list(pool.map(chat, range(120)))
    statuses = Counter(status for status, _ in found)
    assert statuses[200] == 25
    assert statuses[404] + statuses[429] == 95
    assert statuses[429] >= 35
    assert {bool(wait_for) for status, wait_for in found if status == 429} == {True}
    site.eventually(lambda: Generation.objects.filter(status="completed").count() == 25)
    assert_in_order()


def deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_a_mixed_load_causes_no_deadlock_and_keeps_the_ledger_balanced(
    site: Site, running_service: Served
) -> None:
    price = factories.make_price("0.000001", "0.000002")
    site.publish(price=price)
    site.own("sim-slow:0.01", price=price)
    slow = factories.make_model("acme/slow")
    site.publish("sim-slow:0.02,0.02", model=slow, price=price)
    broken = factories.make_model("acme/broken")
    site.publish("sim-reset-stream", model=broken, price=price)
    tenants = [site.tenant, factories.make_tenant("Poor", credits_usd=0)]
    limits = [None, 10**6]
    keys = [
        ApiKey.objects.create_key(workspace=tenant.workspace, name="load", limit_nano=limit)
        for tenant in tenants
        for limit in limits
    ]
    before = deadlocks()
    until = time.monotonic() + count_examples(20)
    failures: list[BaseException] = []
    statuses: Counter[tuple[str, int]] = Counter()

    def chat(dice: random.Random) -> None:
        _, secret = dice.choice(keys)
        model = dice.choice(["acme/falcon", "acme/slow", "acme/broken"])
        body = site.chat_body("one two three", model=model, stream=dice.random() < 0.5)
        if dice.random() < 0.6:
            body["max_tokens"] = dice.choice([1, 50, 5000])
        answer = ask(running_service, body, secret.reveal())
        statuses[model, answer.status_code] += 1

    def again(act: Callable[[random.Random], object], pause: float = 0.02) -> Callable[[int], None]:
        def run(seed: int) -> None:
            dice = random.Random(seed)
            try:
                while time.monotonic() < until:
                    act(dice)
                    time.sleep(pause)
            except BaseException as exc:
                failures.append(exc)
            finally:
                connections.close_all()

        return run

    def grant(dice: random.Random) -> None:
        ledger.grant(dice.choice(tenants).organization.pk, dice.randrange(1, 300_000), actor="t")

    def refund(dice: random.Random) -> None:
        paid = Transfer.objects.filter(kind="usage", status="posted").order_by("?").first()
        if paid is not None:
            with suppress(ledger.NothingToRefund):
                ledger.refund(paid.reference or "", actor="t")

    def edit(dice: random.Random) -> None:
        key, _ = dice.choice(keys[1::2])
        key.edit(limit_nano=dice.randrange(10**5, 10**7))
        Guardrail.objects.edit_workspace_default(
            site.tenant.workspace, limit_nano=dice.randrange(10**9), reset_interval="daily"
        )

    duties = [again(grant), again(refund), again(edit, 0.5), again(lambda _: sweep())]
    with ThreadPoolExecutor(24) as pool:
        ran = [pool.submit(again(chat, 0.05), seed) for seed in range(20)]
        ran += [pool.submit(duty, 100 + seed) for seed, duty in enumerate(duties)]
        for future in ran:
            future.result()
    assert failures == []
    assert {status for _, status in statuses} <= {200, 402, 403, 502}, statuses
    assert {model for model, status in statuses if status == 502} <= {"acme/broken"}
    assert statuses["acme/falcon", 200] > 0
    wait_until(lambda: not Generation.objects.filter(status="pending").exists())
    assert deadlocks() == before
    assert_in_order()
