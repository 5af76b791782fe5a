"""The budgets of a worker: what is refused, what is given back, and what operators see."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from uuid import UUID, uuid4

import pytest
from prometheus_client import REGISTRY

from config.api.errors import GatewayError, TooManyRequests, Unavailable
from config.database.outages import outages
from config.server.bulkheads import MANAGEMENT_TURNS, SMALL_BYTES, BulkheadBudget, Bulkheads
from tests.support.machine.logs import own_lines

MIB = 1024 * 1024
ORGANIZATION, OTHER = UUID(int=1), UUID(int=2)
KEY, OTHER_KEY = UUID(int=3), UUID(int=4)


def run(check: Callable[[Bulkheads], None]) -> None:
    """Runs a check on an event loop, and asserts that it left nothing behind."""

    async def scenario() -> None:
        bulkheads = Bulkheads()
        check(bulkheads)
        assert bulkheads.is_idle

    asyncio.run(scenario())


def refusals(budget: BulkheadBudget) -> float:
    labels = {"reason": budget.value}
    return REGISTRY.get_sample_value("causeway_budget_refusals_total", labels) or 0


def refused(
    kind: type[GatewayError], act: Callable[[], object], budget: BulkheadBudget
) -> GatewayError:
    before = refusals(budget)
    with pytest.raises(kind) as caught:
        act()
    assert refusals(budget) == before + 1
    assert caught.value.headers == {"Retry-After": "1"}
    return caught.value


def test_an_organization_runs_no_more_than_its_limit_at_once(settings: object) -> None:
    settings.ORGANIZATION_CONCURRENCY = 2

    def check(bulkheads: Bulkheads) -> None:
        with bulkheads.enter(ORGANIZATION, KEY), bulkheads.enter(ORGANIZATION, OTHER_KEY):
            enter = bulkheads.enter(ORGANIZATION, KEY).__enter__
            error = refused(TooManyRequests, enter, BulkheadBudget.CONCURRENCY)
            assert error.status == 429
            assert error.error_type == "rate_limit_exceeded"
            assert "2 requests" in error.message
            with bulkheads.enter(OTHER, uuid4()):
                assert bulkheads.running == 3
        with bulkheads.enter(ORGANIZATION, KEY):
            assert bulkheads.running == 1

    run(check)


def test_a_request_that_has_left_counts_nothing() -> None:
    def check(bulkheads: Bulkheads) -> None:
        with bulkheads.enter(ORGANIZATION, KEY) as occupancy:
            occupancy.reserve(10)
        occupancy.reserve(10)
        occupancy.add(10)
        occupancy.note_unread(10)
        occupancy.keep(10)
        occupancy.keep(-10)
        assert bulkheads.buffered == 0

    run(check)


def test_what_waits_for_a_slow_caller_is_counted_and_refuses_only_what_follows(
    settings: object,
) -> None:
    settings.ORGANIZATION_BUFFERED_BYTES = 2 * MIB

    def check(bulkheads: Bulkheads) -> None:
        with bulkheads.enter(ORGANIZATION, KEY) as slow:
            slow.note_unread(3 * MIB)
            slow.note_unread(2 * MIB)
            assert (bulkheads.buffered, slow.held) == (2 * MIB, 0)
            with bulkheads.enter(ORGANIZATION, OTHER_KEY) as other:
                refused(
                    TooManyRequests, lambda: other.reserve(1), BulkheadBudget.ORGANIZATION_BYTES
                )
                slow.note_unread(0)
                other.reserve(2 * MIB)
                other.add(MIB)
                slow.note_unread(MIB)
                assert bulkheads.buffered == 4 * MIB
            slow.release_all()
            assert bulkheads.buffered == MIB
        assert bulkheads.buffered == 0

    run(check)


def test_what_a_stream_keeps_outlives_the_body_and_may_be_refused(settings: object) -> None:
    settings.ORGANIZATION_BUFFERED_BYTES = 3 * MIB

    def check(bulkheads: Bulkheads) -> None:
        with bulkheads.enter(ORGANIZATION, KEY) as stream:
            stream.reserve(MIB)
            # A key's share does not bind its only request.
            stream.keep(MIB)
            stream.keep(MIB)
            refused(TooManyRequests, lambda: stream.keep(1), BulkheadBudget.ORGANIZATION_BYTES)
            stream.release_all()
            assert (bulkheads.buffered, stream.held) == (2 * MIB, 0)
            with bulkheads.enter(ORGANIZATION, KEY) as other:
                refused(TooManyRequests, lambda: other.keep(1), BulkheadBudget.KEY_BYTES)
                stream.keep(-2 * MIB)
                other.keep(MIB)
            assert bulkheads.buffered == 0
            stream.keep(MIB)
        assert bulkheads.buffered == 0

    run(check)


def test_management_requests_are_counted_apart(settings: object) -> None:
    settings.ORGANIZATION_CONCURRENCY = 1

    def check(bulkheads: Bulkheads) -> None:
        with bulkheads.enter(ORGANIZATION, KEY):
            with bulkheads.enter(ORGANIZATION, KEY, is_management=True):
                enter = bulkheads.enter(ORGANIZATION, KEY, is_management=True).__enter__
                refused(TooManyRequests, enter, BulkheadBudget.CONCURRENCY)
            with bulkheads.enter(ORGANIZATION, KEY, is_management=True):
                assert bulkheads.running == 2

    run(check)


def test_management_requests_of_an_organization_take_turns() -> None:
    async def scenario() -> None:
        bulkheads = Bulkheads()
        running: Counter[UUID] = Counter()
        most: Counter[UUID] = Counter()
        release = asyncio.Event()

        async def request(organization_id: UUID) -> None:
            with bulkheads.enter(organization_id, KEY, is_management=True) as occupancy:
                async with occupancy.turn():
                    running[organization_id] += 1
                    most[organization_id] = max(most[organization_id], running[organization_id])
                    await release.wait()
                    running[organization_id] -= 1

        tasks = [asyncio.create_task(request(ORGANIZATION)) for _ in range(MANAGEMENT_TURNS + 5)]
        tasks.append(asyncio.create_task(request(OTHER)))
        while not running[OTHER]:
            await asyncio.sleep(0)
        assert bulkheads.running == MANAGEMENT_TURNS + 6
        release.set()
        await asyncio.gather(*tasks)
        assert most == {ORGANIZATION: MANAGEMENT_TURNS, OTHER: 1}
        assert bulkheads.is_idle

    asyncio.run(scenario())


def test_who_waited_for_a_turn_does_not_ask_a_silent_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        bulkheads = Bulkheads()
        monkeypatch.setattr(outages, "is_silent", True)
        release = asyncio.Event()
        served: list[int] = []

        async def request(number: int) -> None:
            with bulkheads.enter(ORGANIZATION, KEY, is_management=True) as occupancy:
                async with occupancy.turn():
                    served.append(number)
                    await release.wait()

        tasks = [asyncio.create_task(request(number)) for number in range(MANAGEMENT_TURNS + 1)]
        while bulkheads.running <= MANAGEMENT_TURNS or len(served) < MANAGEMENT_TURNS:
            await asyncio.sleep(0)
        release.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in found] == [type(None)] * MANAGEMENT_TURNS + [Unavailable]
        # Whoever comes to a free turn asks again.
        await request(99)
        assert served == [*range(MANAGEMENT_TURNS), 99]
        assert bulkheads.is_idle

    asyncio.run(scenario())


def test_a_key_holds_no_more_than_half_of_its_organization() -> None:
    def check(bulkheads: Bulkheads) -> None:
        with ExitStack() as stack:
            first, second = (stack.enter_context(bulkheads.enter(ORGANIZATION, KEY)) for _ in "12")
            first.reserve(20 * MIB)
            refused(TooManyRequests, lambda: second.reserve(13 * MIB), BulkheadBudget.KEY_BYTES)
            second.reserve(12 * MIB)
            other = stack.enter_context(bulkheads.enter(ORGANIZATION, OTHER_KEY))
            other.reserve(32 * MIB)
            assert bulkheads.buffered == 64 * MIB
            refused(TooManyRequests, lambda: other.reserve(1), BulkheadBudget.ORGANIZATION_BYTES)
            second.release(12 * MIB)
            assert (second.held, bulkheads.buffered) == (0, 52 * MIB)
            other.reserve(12 * MIB)

    run(check)


def test_the_only_request_of_a_key_may_hold_what_its_organization_may() -> None:
    def check(bulkheads: Bulkheads) -> None:
        with bulkheads.enter(ORGANIZATION, KEY) as occupancy:
            occupancy.reserve(20 * MIB)
            occupancy.reserve(44 * MIB)
            refused(
                TooManyRequests, lambda: occupancy.reserve(1), BulkheadBudget.ORGANIZATION_BYTES
            )
            assert occupancy.held == 64 * MIB

    run(check)


def test_a_full_worker_answers_that_it_is_unavailable(settings: object) -> None:
    settings.MAX_BUFFERED_BYTES = 96 * MIB

    def check(bulkheads: Bulkheads) -> None:
        with (
            bulkheads.enter(ORGANIZATION, KEY) as one,
            bulkheads.enter(OTHER, OTHER_KEY) as two,
            bulkheads.enter_operator() as operator,
        ):
            one.reserve(64 * MIB)
            operator.reserve(16 * MIB)
            error = refused(Unavailable, lambda: two.reserve(17 * MIB), BulkheadBudget.WORKER_BYTES)
            assert error.status == 503
            two.reserve(16 * MIB)
            operator.release_all()
            two.reserve(16 * MIB)

    run(check)


def test_large_requests_leave_room_for_small_ones(settings: object) -> None:
    settings.MAX_BUFFERED_BYTES = 64 * MIB

    def check(bulkheads: Bulkheads) -> None:
        with ExitStack() as stack:
            stack.enter_context(bulkheads.enter(OTHER, OTHER_KEY)).reserve(64 * MIB)
            for _ in range(8 * MIB // SMALL_BYTES):
                small = stack.enter_context(bulkheads.enter(ORGANIZATION, KEY))
                small.reserve(SMALL_BYTES)
            last = stack.enter_context(bulkheads.enter(ORGANIZATION, KEY))
            refused(Unavailable, lambda: last.reserve(1), BulkheadBudget.WORKER_BYTES)

    run(check)


def test_a_request_that_fails_gives_everything_back() -> None:
    def check(bulkheads: Bulkheads) -> None:
        with pytest.raises(ZeroDivisionError), bulkheads.enter(ORGANIZATION, KEY) as occupancy:
            occupancy.reserve(MIB)
            raise ZeroDivisionError

    run(check)


def test_more_than_was_reserved_cannot_be_released() -> None:
    def check(bulkheads: Bulkheads) -> None:
        with bulkheads.enter(ORGANIZATION, KEY) as occupancy:
            occupancy.reserve(1)
            with pytest.raises(AssertionError):
                occupancy.release(2)

    run(check)


def test_refusals_are_logged_once_a_second_for_each_organization_and_reason(
    caplog: pytest.LogCaptureFixture, settings: object
) -> None:
    settings.ORGANIZATION_CONCURRENCY = 1

    def check(bulkheads: Bulkheads) -> None:
        with bulkheads.enter(ORGANIZATION, KEY), bulkheads.enter(OTHER, OTHER_KEY) as other:
            for _ in range(3):
                for organization in (ORGANIZATION, OTHER):
                    with pytest.raises(TooManyRequests):
                        bulkheads.enter(organization, KEY).__enter__()
            other.reserve(64 * MIB)
            with pytest.raises(TooManyRequests):
                other.reserve(1)

    with caplog.at_level(logging.WARNING, "config.server.bulkheads"):
        run(check)
    assert sorted(own_lines(caplog)) == [
        f"the budget {budget} is used up by organization {organization}: requests are refused"
        for budget, organization in (
            ("organization_bytes", OTHER),
            ("organization_concurrency", ORGANIZATION),
            ("organization_concurrency", OTHER),
        )
    ]


def test_the_gauges_follow_the_counts(eventually: Callable[[Callable[[], bool]], None]) -> None:
    bulkheads = Bulkheads()

    def shown() -> list[float | None]:
        bulkheads.show_figures()
        names = ("causeway_running_requests", "causeway_buffered_bytes")
        return [REGISTRY.get_sample_value(name) for name in names]

    # A service that runs in this process shows its own counts once a second.
    with bulkheads.enter(ORGANIZATION, KEY) as occupancy:
        occupancy.reserve(7)
        eventually(lambda: shown() == [1, 7])
    eventually(lambda: shown() == [0, 0])
