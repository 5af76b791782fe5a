"""Deferred metrics are the same as those that are written at once."""

from __future__ import annotations

import asyncio
import time

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram

from config.server.load.figures import DeferredCounter, DeferredHistogram
from config.server.load.loop_lag import LoopLag
from tests.support.bulkheads.counters import sample
from tests.support.machine.logs import own_lines
from tests.support.machine.waiting import wait_until

BOUNDS = (0.25, 0.5, 1.0)
# Their sums are exact.
VALUES = (0.0, 0.25, 0.265625, 0.5, 0.75, 1.0, 1.5, 300.0)


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    return {
        (each.name, str(sorted(each.labels.items()))): each.value
        for family in registry.collect()
        for each in family.samples
        if not each.name.endswith("_created")
    }


def test_a_deferred_histogram_is_what_the_library_counts_at_once() -> None:
    plain, deferred = CollectorRegistry(), CollectorRegistry()
    direct = Histogram("x", "x", ("kind",), buckets=BOUNDS, registry=plain)
    later = DeferredHistogram(
        Histogram("x", "x", ("kind",), buckets=BOUNDS, registry=deferred), BOUNDS
    )
    for _ in range(2):
        for number, value in enumerate(VALUES):
            kind = "even" if number % 2 else "odd"
            direct.labels(kind).observe(value)
            later.observe((kind,), value)
        later.flush()
    assert samples(deferred) == samples(plain)
    later.flush()
    assert samples(deferred) == samples(plain)


def test_a_deferred_counter_counts_when_it_is_flushed() -> None:
    registry = CollectorRegistry()
    counter = DeferredCounter(Counter("x", "x", ("kind",), registry=registry))
    counter.amounts["a",] += 1
    counter.amounts["a",] += 2.5
    counter.amounts["b",] += 1
    assert samples(registry) == {}
    counter.flush()
    counter.flush()
    assert sorted(samples(registry).values()) == [1.0, 3.5]


def test_an_amount_that_is_refused_takes_no_other_one_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    counter = DeferredCounter(Counter("x", "x", ("kind",), registry=registry))
    counter.amounts["a",] -= 1
    counter.amounts["b",] += 2
    counter.flush()
    assert sorted(samples(registry).values()) == [0.0, 2.0]
    [line] = own_lines(caplog)
    assert "counter:x" in line


def test_a_blocked_event_loop_is_late(db: None) -> None:
    def count_late() -> float:
        name = "causeway_event_loop_lag_seconds_bucket"
        return sample(name, le="+Inf") - sample(name, le="0.25")

    before = count_late()

    async def block() -> None:
        lag = LoopLag()
        lag.start()
        await asyncio.sleep(0)
        time.sleep(0.6)
        await asyncio.sleep(0.01)
        lag.stop()

    def is_counted() -> bool:
        asyncio.run(block())
        return count_late() >= before + 1

    # The service in this process writes its counts at the same time, and may take one away; a
    # worker has one event loop.
    wait_until(is_counted, "nothing was counted")


def test_gauges_are_shown_at_each_turn() -> None:
    async def run() -> int:
        shown: list[int] = []
        done = asyncio.Event()

        def show() -> None:
            shown.append(1)
            done.set()

        lag = LoopLag([show])
        lag.start()
        async with asyncio.timeout(60):
            await done.wait()
        lag.stop()
        return len(shown)

    assert asyncio.run(run()) == 1
