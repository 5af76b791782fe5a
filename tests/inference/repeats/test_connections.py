"""The connections of repeated requests: organizations take turns, and wait for no others' locks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from accounts.models import ApiKey
from config.api.errors import Unavailable
from config.database.driver import Rejected
from config.server.batching.waits import Blocked
from config.sql import Statement
from inference.ids import new_generation_id
from inference.models import IdempotentRequest
from inference.repeats.answers import READ
from inference.repeats.connections import SharedConnections
from inference.repeats.key_uses import KeyUse, KeyUses
from inference.store import DataPlaneConnection
from tests.support import factories
from tests.support.bulkheads.counters import sample
from tests.support.database.locks import locked
from tests.support.factories import Tenant
from tests.support.inference.site import CHAT


@pytest.mark.parametrize(("error", "calls"), [(Unavailable(), 1), (Rejected("no"), 3)])
def test_statements_that_wait_fail_with_the_one_that_finds_no_database(
    monkeypatch: pytest.MonkeyPatch, error: Exception, calls: int
) -> None:
    made: list[Sequence[Any]] = []

    async def execute(
        self: DataPlaneConnection, query: Any, parameters: Sequence[Any], organizations: Any
    ) -> Any:
        made.append(parameters)
        if parameters == (0,):
            raise error
        return [parameters]

    async def run() -> list[Any]:
        shared = SharedConnections("test")
        # Two organizations: the failure of one statement is that of all.
        waiting = [shared.execute(UUID(int=number % 2), READ, (number,)) for number in range(3)]
        results = await asyncio.gather(*waiting, return_exceptions=True)
        await shared.close()
        return results

    monkeypatch.setattr(DataPlaneConnection, "execute", execute)
    results = asyncio.run(run())
    assert len(made) == calls
    if calls == 1:
        assert [type(each) for each in results] == [Unavailable] * 3
    else:
        assert results == [error, [(1,)], [(2,)]]


def test_slow_statements_of_one_organization_leave_turns_to_the_others(
    transactional_db: None,
) -> None:
    slow = Statement("sleep", "SELECT pg_sleep(0.01)")

    async def run() -> int:
        shared = SharedConnections("test")
        many = [shared.execute(UUID(int=1), slow, ()) for _ in range(200)]
        await shared.execute(UUID(int=2), slow, ())
        done = sum(each.done() for each in many)
        await asyncio.gather(*many)
        await shared.close()
        return done

    # Half of the statements of the first batch were the other organization's.
    assert asyncio.run(run()) == 8


def test_a_locked_use_of_a_key_holds_up_no_other_organization(transactional_db: None) -> None:
    mine, theirs = (find_key(factories.make_tenant(name)) for name in ("Mine", "Theirs"))

    async def begin_one() -> KeyUse:
        uses = KeyUses()
        use = await begin(uses, mine)
        await uses.close()
        return use

    async def begin_all() -> tuple[KeyUse, float, list[KeyUse | BaseException]]:
        uses = KeyUses()
        blocked = [asyncio.create_task(begin(uses, mine)) for _ in range(40)]
        await asyncio.sleep(0)
        use = await begin(uses, theirs)
        timeouts = count_timeouts() - before
        refused = await asyncio.gather(*blocked, return_exceptions=True)
        await uses.close()
        return use, timeouts, refused

    assert asyncio.run(begin_one()).state == "begun"
    before = count_timeouts()
    with locked(IdempotentRequest.objects.all()):
        use, timeouts, refused = asyncio.run(begin_all())
    # It shared one batch with those that are locked, and waited for one of them.
    assert (use.state, timeouts) == ("begun", 1)
    assert [type(each) for each in refused] == [Blocked] * 40
    assert asyncio.run(begin_one()).state == "running"


def find_key(tenant: Tenant) -> ApiKey:
    return ApiKey.objects.select_related("workspace").get(
        workspace=tenant.workspace, name="inference"
    )


async def begin(uses: KeyUses, key: ApiKey) -> KeyUse:
    owner = key.workspace.organization_id
    return await uses.begin(owner, key.pk, CHAT, "key", b"digest", new_generation_id())


def count_timeouts() -> float:
    return sample(
        "causeway_lock_timeouts_total",
        statement="begin_key_use",
        relation="inference_idempotentrequest",
    )
