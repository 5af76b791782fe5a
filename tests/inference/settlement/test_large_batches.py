"""Settlements and heartbeats of many generations search rows once and lock them shortly."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

from django.db import connection
from django.utils import timezone

from inference.ids import new_generation_id
from inference.models import Generation, Journal
from inference.routing.health import HealthTable
from inference.settlement.journal import Heartbeat, Progress
from inference.settlement.settle import SETTLE, Settlement, settlement_parameters
from inference.store import run_in_thread
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.ledger import assert_in_order

# The parts of a settlement whose number of rows the planner takes for one. In the others, it joins
# with a batch that it takes for a hundred rows, and never by a loop.
PARTS = ("CTE ended_holds", "CTE deleted_journals")


def read_loops(plan: Any, part: str = "") -> Counter[tuple[str, int]]:
    """Counts the nodes of each part of an executed plan, by how often they were executed."""
    part = plan.get("Subplan Name", part)
    if plan.get("Subplan Name", "").startswith("InitPlan"):
        return Counter()
    loops = Counter([(part, plan["Actual Loops"])] if part in PARTS else [])
    for each in plan.get("Plans", ()):
        loops += read_loops(each, part)
    return loops


def test_a_settlement_searches_its_rows_once_for_the_whole_batch(db: None, tenant: Tenant) -> None:
    batch = []
    for number in range(5):
        generation = factories.make_generation(tenant, status="pending", hold_nano=1_000)
        factories.place_hold(generation, 1_000)
        batch.append(Settlement(generation.pk, "completed", cost_nano=200 * number))
    # The worker's plan is made once for all batches, perhaps by statistics of empty tables: then
    # loops seem as good as any other join.
    with connection.cursor() as cursor:
        for name in ("enable_hashjoin", "enable_mergejoin", "enable_material", "enable_seqscan"):
            cursor.execute(f"SET LOCAL {name} = off")
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE settle (json, text, text) AS {SETTLE.text}")
        arguments = ", ".join(f"'{value}'" for value in settlement_parameters(batch))
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE settle ({arguments})")
        [found] = cursor.fetchone()
        cursor.execute("DEALLOCATE settle")
    plan = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
    # A loop over the batch would search all its rows once for each row.
    assert set(read_loops(plan)) == {(part, 1) for part in PARTS}
    costs = Generation.objects.order_by("cost_nano").values_list("status", "cost_nano")
    assert list(costs) == [("completed", 200 * number) for number in range(5)]
    assert_in_order()


def test_a_heartbeat_locks_at_most_128_journals_at_a_time(transactional_db: None) -> None:
    # A settlement that ends one of these generations waits for the transaction that locks it.
    ids = [new_generation_id() for _ in range(300)]
    Journal.objects.bulk_create(
        Journal(generation_id=each, prompt_tokens=0, completion_tokens=0, beat_at=timezone.now())
        for each in ids
    )
    progress = [Progress(each, 3, 4) for each in ids]

    async def beat() -> None:
        heartbeat = Heartbeat(lambda is_urgent: progress, HealthTable(), lambda: None)
        heartbeat.start()
        try:
            while await run_in_thread(Journal.objects.filter(completion_tokens=4).count) < 300:
                await heartbeat.flush()
        finally:
            await heartbeat.close()

    asyncio.run(beat())
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM inference_journal GROUP BY xmin::text")
        sizes = [count for (count,) in cursor.fetchall()]
    Journal.objects.all().delete()
    assert sorted(sizes) == [44, 128, 128]
