"""The counts of guardrails are stored while one of their rows is locked."""

from __future__ import annotations

import asyncio
from uuid import UUID

from inference.models import GuardrailCount
from inference.shadows.counting import WorkerCounts
from tests.support import factories
from tests.support.database.locks import locked
from tests.support.governance import make_guardrail

SLOT = 1_800_000_000


def stored() -> dict[UUID, int]:
    return dict(GuardrailCount.objects.values_list("guardrail_id", "requests"))


def test_a_locked_count_holds_up_no_others(transactional_db: None) -> None:
    workspace = factories.make_tenant().workspace
    guardrails = [make_guardrail(workspace, name=f"Rules {number}").pk for number in range(5)]
    blocked = guardrails[2]

    async def count_and_store() -> None:
        counts.count_judged(guardrails, SLOT)
        await counts.store()

    counts = WorkerCounts()
    with asyncio.Runner() as runner:
        runner.run(count_and_store())
        assert stored() == dict.fromkeys(guardrails, 1)
        with locked(GuardrailCount.objects.filter(guardrail_id=blocked)):
            runner.run(count_and_store())
            assert stored() == {**dict.fromkeys(guardrails, 2), blocked: 1}
        runner.run(counts.close())
    assert stored() == dict.fromkeys(guardrails, 2)
