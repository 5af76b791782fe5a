"""The share of the event loop that one organization's answers may take."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from inference.exchange.workload import LoopTime
from tests.support.machine.logs import own_lines

BUSY, QUIET = UUID(int=1), UUID(int=2)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def throttled() -> float:
    labels = {"reason": "loop_time"}
    return REGISTRY.get_sample_value("causeway_throttled_seconds_total", labels) or 0


def waits(loop_time: LoopTime, organization_id: UUID, clock: Clock) -> bool:
    """Tells whether an organization waits for its turn; ends its window if it does."""

    async def take_turn() -> bool:
        turn = asyncio.create_task(loop_time.wait_turn(organization_id))
        await asyncio.sleep(0)
        is_waiting = not turn.done()
        clock.now += 1
        await turn
        return is_waiting

    return asyncio.run(take_turn())


def use(loop_time: LoopTime, clock: Clock, seconds: float, size: int = 0) -> None:
    began = loop_time.now()
    clock.now += seconds
    loop_time.count(BUSY, began, size)


@pytest.mark.parametrize(
    ("steps", "size", "expected"),
    [([0.009], 0, False), ([0.011], 0, True), ([0.004] * 3, 0, True), ([0], 10_000_001, True)],
)
def test_an_organization_waits_once_it_used_half_of_the_window(
    steps: list[float], size: int, expected: bool
) -> None:
    clock = Clock()
    loop_time = LoopTime(lambda: True, clock)
    for seconds in steps:
        use(loop_time, clock, seconds, size)
    assert waits(loop_time, QUIET, Clock()) is False
    before = throttled()
    assert waits(loop_time, BUSY, clock) is expected
    assert (throttled() > before) is expected


def test_an_organization_alone_never_waits() -> None:
    clock = Clock()
    loop_time = LoopTime(lambda: False, clock)
    use(loop_time, clock, 0.015)
    assert waits(loop_time, BUSY, clock) is False


def test_the_next_window_counts_from_zero() -> None:
    clock = Clock()
    loop_time = LoopTime(lambda: True, clock)
    use(loop_time, clock, 0.015)
    clock.now += 0.02
    use(loop_time, clock, 0.005)
    assert waits(loop_time, BUSY, clock) is False


def test_the_log_names_the_organization_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    loop_time = LoopTime(lambda: True, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            use(loop_time, clock, 0.015)
            assert waits(loop_time, BUSY, clock)
    assert own_lines(caplog) == [
        f"organization {BUSY} takes more than 50 % of the event loop: its answers wait"
    ]
