"""A generation that cannot be measured: it holds up no other one, and it is settled."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from accounts.bearers import bearer_digests
from billing.models import Transfer
from catalog.dialects.base import Operation
from inference.admission.decide import AdmissionRequest
from inference.exchange.gateway import Exchange, Gateway
from inference.models import Generation, Journal, WorkerBeat
from inference.requests import parsing
from inference.settlement.settle import MOST_COUNT
from inference.store import run_in_thread
from inference.taps.figures import WorkerWatcher
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order

BODY = (
    b'{"model": "acme/falcon", "stream": true, "max_tokens": 100,'
    b' "messages": [{"role": "user", "content": "one two"}]}'
)
Admit = Callable[..., Awaitable[Exchange]]
# A request whose text is gone is taken by its bytes, four of them for a token.
ROUGH_TOKENS = -(-parsing.parse(Operation.CHAT, BODY).prompt_bound // 4)


def run(site: Site, work: Callable[[Gateway, Admit], Awaitable[None]]) -> None:
    """Runs a gateway of its own, and what is done with it."""

    async def open_and_work() -> None:
        gateway = Gateway(WorkerWatcher)
        await gateway.open()
        key = await gateway.recognizer.recognize(bearer_digests(f"Bearer {site.tenant.api_key}"))

        async def admit(body: bytes = BODY) -> Exchange:
            occupancy = gateway.bulkheads.enter(key.organization_id, key.key_id)
            request = parsing.parse(Operation.CHAT, body)
            entry = AdmissionRequest(key.digest, request, "request-1")
            return await gateway.admit(entry, key, occupancy)

        async with asyncio.timeout(40):
            await work(gateway, admit)
        await gateway.close()

    asyncio.run(open_and_work())


def told_of(caplog: pytest.LogCaptureFixture, generation_id: str) -> list[str]:
    return [each.getMessage() for each in caplog.records if generation_id in each.getMessage()]


def test_one_that_cannot_be_measured_holds_up_no_heartbeat(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.publish()
    found: dict[str, Any] = {}

    async def work(gateway: Gateway, admit: Admit) -> None:
        broken, other = await admit(), await admit()
        broken.admission.request.forget()
        worker = WorkerBeat.objects.filter(pk=gateway._heartbeat._history.worker)
        before = (await run_in_thread(worker.get)).number
        measured = Journal.objects.filter(prompt_tokens__gt=0)
        while (
            await run_in_thread(measured.count) < 2
            or (await run_in_thread(worker.get)).number < before + 2
        ):
            await gateway.journal(is_first=True)
        rows = await run_in_thread(lambda: dict(measured.values_list("pk", "prompt_tokens")))
        found.update(broken=rows[broken.generation_id], other=rows[other.generation_id])
        found["told"] = told_of(caplog, broken.generation_id)
        for each in (broken, other):
            each.settle(asyncio.CancelledError())

    with caplog.at_level(logging.ERROR):
        run(site, work)
    assert (found["broken"], found["other"]) == (ROUGH_TOKENS, 6)
    [line] = found["told"]
    assert "KeyError" in line
    assert not Generation.objects.filter(status="pending").exists()
    assert_in_order()


def test_one_whose_charge_fails_pays_for_its_bytes(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.publish()

    async def work(gateway: Gateway, admit: Admit) -> None:
        exchange = await admit()
        exchange.admission.request.forget()
        exchange._tally.add_output(9)
        exchange.settle()

    run(site, work)
    row = site.settled()
    assert (row.status, row.is_estimated) == ("completed", True)
    assert (row.prompt_tokens, row.completion_tokens) == (ROUGH_TOKENS, 3)
    assert row.cost_nano == 1_000 * ROUGH_TOKENS + 2_000 * 3 < row.hold_nano
    [line] = told_of(caplog, row.pk)
    assert "one two" not in line
    assert_in_order()


@pytest.mark.parametrize(("output", "status"), [(40, "posted"), (0, "voided")])
def test_one_whose_price_is_unknown_pays_its_hold_for_what_was_delivered(
    site: Site, output: int, status: str
) -> None:
    site.publish()

    async def work(gateway: Gateway, admit: Admit) -> None:
        exchange = await admit()
        item = exchange.attempts.item
        route: Any = dataclasses.replace(item.candidate.route, price=None)
        candidate = dataclasses.replace(item.candidate, route=route)
        exchange.attempts.item = replace(item, candidate=candidate)
        exchange._tally.add_output(output)
        exchange.settle()

    run(site, work)
    row = site.settled()
    assert (row.status, row.cost_nano) == ("completed", row.hold_nano if output else 0)
    assert Transfer.objects.get(reference=row.pk).status == status
    assert_in_order()


@pytest.mark.parametrize("budget", [-(10**30), -9 * 10**18, 10**30])
def test_no_budget_of_a_thought_stops_the_heartbeat(site: Site, budget: int) -> None:
    site.own().edit(settings={"bound": {"thoughts_beside": True, "longest_thought": 2_000}})
    found: dict[str, Any] = {}

    async def work(gateway: Gateway, admit: Admit) -> None:
        odd = await admit(
            BODY.replace(b'"max_tokens"', b'"thinking_budget": %d, "max_tokens"' % budget)
        )
        running = [odd, await admit()]
        for each in running:
            each._tally.allow(each.attempts.candidate, each.attempts.item.max_tokens)
            each._tally.add_output(40)
        measured = Journal.objects.filter(completion_tokens__gt=0)
        while await run_in_thread(measured.count) < len(running):
            await gateway.journal(is_first=True)
        rows = await run_in_thread(lambda: dict(measured.values_list("pk", "completion_tokens")))
        found["tokens"] = [rows[each.generation_id] for each in running]
        for each in running:
            each.settle(asyncio.CancelledError())

    run(site, work)
    first, second = found["tokens"]
    assert 0 < first == second < 40
    assert not Generation.objects.filter(status="pending").exists()
    assert_in_order()


def test_a_progress_is_in_the_range_of_its_columns(site: Site) -> None:
    site.publish()
    found: list[int] = []

    async def work(gateway: Gateway, admit: Admit) -> None:
        exchange = await admit()
        tally = exchange._tally
        tally.add_output(40)
        tally.estimate()
        assert tally._text is not None
        allowance = tally._allowance
        tally._allowance = allowance._replace(prompt=10**30)
        for tokens in (10**30, -(10**30), 0):
            tally._text.tokens = tokens
            progress = exchange.measure_progress()
            assert progress is not None
            found.append(progress.prompt_tokens)
        tally._allowance = allowance
        exchange.settle(asyncio.CancelledError())

    run(site, work)
    assert found[:2] == [MOST_COUNT, 0]
    assert 0 < found[2] < 10
