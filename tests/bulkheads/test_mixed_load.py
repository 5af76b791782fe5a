"""Everything at once on two hosts: requests, changes of all kinds, locked rows, and the sweeper."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import requests
from django.db import connection, connections

from accounts.models import ApiKey, Guardrail
from billing import ledger
from billing.models import Account
from catalog.models import ModelEndpoint
from inference.models import Generation
from inference.settlement.sweeper import sweep
from tests.support import factories
from tests.support.database.locks import locked
from tests.support.factories import Tenant
from tests.support.inference.site import CHAT, Site
from tests.support.ledger import assert_in_order
from tests.support.suite.tiers import count_examples

SECONDS = count_examples(20)
CALLERS = 12
Act = Callable[[random.Random], object]


def deadlocks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def reprice(endpoint: ModelEndpoint, dice: random.Random) -> None:
    price = str(Decimal(dice.randrange(1, 9)) / 10**6)
    factories.set_price(endpoint, factories.make_price(price))


def test_changes_of_all_kinds_cause_no_deadlock_and_no_error(
    site: Site, hosts: tuple[str, str]
) -> None:
    public = [site.publish(), site.publish("sim-slow:0.01", provider=site.another_provider("b"))]
    tenants = [factories.make_tenant(f"Tenant {number}") for number in range(8)]
    calm, changing, locking = tenants[:4], tenants[4:6], tenants[6:]
    private = [
        factories.make_active(each, site.model, site.provider, base_url=site.upstream.base_url)
        for each in changing
    ]
    for each in changing:
        # The public endpoints serve while theirs is disabled.
        each.organization.edit(fallback="any")
    spare = [
        ApiKey.objects.create_key(workspace=each.workspace, name="spare")[0] for each in changing
    ]
    before = deadlocks()
    is_over = threading.Event()
    statuses: Counter[tuple[str, int]] = Counter()
    without_delay: list[str] = []
    groups = {
        each.api_key: name
        for name, group in (("calm", calm), ("changing", changing), ("locking", locking))
        for each in group
    }

    def call(seed: int) -> None:
        dice = random.Random(seed)
        with requests.Session() as session:
            while not is_over.is_set():
                key = dice.choice(list(groups))
                answer = session.post(
                    f"{dice.choice(hosts)}{CHAT}",
                    json=site.chat_body(stream=dice.random() < 0.5, max_tokens=16),
                    headers={"Authorization": f"Bearer {key}"},
                    timeout=60,
                )
                statuses[groups[key], answer.status_code] += 1
                if answer.status_code == 503 and "Retry-After" not in answer.headers:
                    without_delay.append(answer.text)
                is_over.wait(0.05)

    def again(act: Act, pause: float) -> Callable[[int], None]:
        def run(seed: int) -> None:
            dice = random.Random(seed)
            try:
                while not is_over.wait(pause):
                    act(dice)
            finally:
                connections.close_all()

        return run

    def switch_endpoint(dice: random.Random) -> None:
        endpoint = dice.choice(private)
        endpoint.disable()
        endpoint.enable()

    def edit_keys(dice: random.Random) -> None:
        dice.choice(spare).edit(limit_nano=dice.randrange(10**6, 10**9))

    def tighten(dice: random.Random) -> None:
        Guardrail.objects.edit_workspace_default(
            dice.choice(changing).workspace,
            limit_nano=dice.randrange(10**11, 10**12),
            reset_interval="daily",
        )

    def lock(dice: random.Random) -> None:
        tenant: Tenant = dice.choice(locking)
        account = Account.objects.filter(organization=tenant.organization, kind="credits")
        keys = ApiKey.objects.filter(organization=tenant.organization).order_by("pk")
        with locked(dice.choice([account, keys]).order_by("pk")):
            time.sleep(dice.uniform(0.1, 1.5))

    duties = [
        again(lambda dice: reprice(dice.choice(public), dice), 0.3),
        again(switch_endpoint, 0.3),
        again(edit_keys, 0.1),
        again(tighten, 0.4),
        again(lock, 0.2),
        again(lambda dice: ledger.grant(dice.choice(tenants).organization.pk, 5, actor="t"), 0.05),
        again(lambda _: sweep(), 0.5),
    ]
    with ThreadPoolExecutor(CALLERS + len(duties)) as pool:
        ran = [pool.submit(call, seed) for seed in range(CALLERS)]
        ran += [pool.submit(duty, 100 + seed) for seed, duty in enumerate(duties)]
        time.sleep(SECONDS)
        is_over.set()
        for future in ran:
            future.result()

    assert {status for group, status in statuses if group == "calm"} == {200}, statuses
    # An organization that changes faster than a busy host decides is asked to come again.
    assert {status for group, status in statuses if group == "changing"} <= {200, 503}, statuses
    assert {status for group, status in statuses if group == "locking"} <= {200, 503}, statuses
    assert min(statuses[group, 200] for group in ("changing", "locking")) > 0
    assert without_delay == []
    site.eventually(lambda: not Generation.objects.filter(status="pending").exists())
    assert deadlocks() == before
    assert_in_order()
