"""The threads for large work: whose turn it is, what is refused, and what is dropped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import REGISTRY

from config.api.errors import TooManyRequests
from config.server.load.large_work import LargeWork


class Gate(threading.Event):
    """An event with a time limit, so that no thread waits for ever after a failed test."""

    def wait(self, timeout: float | None = 30.0) -> bool:
        return super().wait(timeout)


def run(scenario: Callable[[LargeWork], Awaitable[None]]) -> None:
    async def scene() -> None:
        work = LargeWork("test")
        await scenario(work)
        work.close()

    asyncio.run(scene())


def refusals() -> float:
    return REGISTRY.get_sample_value("causeway_large_work_refusals_total") or 0


def test_work_returns_its_result_or_raises_its_error() -> None:
    async def scenario(work: LargeWork) -> None:
        assert await work.run("a", divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await work.run("a", divmod, 7, 0)
        assert await work.run("a", threading.get_ident) != threading.get_ident()

    run(scenario)


def test_the_work_of_another_organization_does_not_wait() -> None:
    async def scenario(work: LargeWork) -> None:
        gate = Gate()
        blocked = [asyncio.create_task(work.run("many", gate.wait)) for _ in range(5)]
        await asyncio.sleep(0)
        assert await work.run("other", int, "5") == 5
        assert not any(task.done() for task in blocked)
        gate.set()
        assert await asyncio.gather(*blocked) == [True] * 5

    run(scenario)


def test_organizations_take_turns() -> None:
    async def scenario(work: LargeWork) -> None:
        gate = Gate()
        order: list[str] = []
        # Both threads are taken by others.
        others = [asyncio.create_task(work.run(name, gate.wait)) for name in ("x", "y")]
        tasks = [
            asyncio.create_task(work.run(name[0], order.append, name))
            for name in ("a1", "a2", "a3", "b1", "c1")
        ]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*others, *tasks)
        assert [name for name in order if name[0] == "a"] == ["a1", "a2", "a3"]
        assert order.index("a2") > order.index("b1")
        assert order.index("a3") > order.index("c1")

    run(scenario)


def test_an_organization_with_64_waiting_pieces_is_refused_until_one_begins() -> None:
    async def scenario(work: LargeWork) -> None:
        gate = Gate()
        tasks = [asyncio.create_task(work.run("many", gate.wait)) for _ in range(65)]
        await asyncio.sleep(0)
        before = refusals()
        with pytest.raises(TooManyRequests) as caught:
            await work.run("many", int)
        assert caught.value.headers == {"Retry-After": "1"}
        assert "64 large requests waiting" in caught.value.message
        assert refusals() == before + 1
        assert await work.run("other", int) == 0
        gate.set()
        await asyncio.gather(*tasks)
        assert await work.run("many", int) == 0

    run(scenario)


def test_cancelled_work_never_begins_and_its_turn_passes_on() -> None:
    async def scenario(work: LargeWork) -> None:
        gate = Gate()
        begun: list[str] = []
        running = asyncio.create_task(work.run("a", gate.wait))
        cancelled = asyncio.create_task(work.run("a", begun.append, "cancelled"))
        last = asyncio.create_task(work.run("a", begun.append, "last"))
        await asyncio.sleep(0)
        cancelled.cancel()
        running.cancel()
        await asyncio.sleep(0)
        gate.set()
        await last
        assert begun == ["last"]
        assert running.cancelled()
        assert cancelled.cancelled()

    run(scenario)


def test_scratch_is_counted_while_the_work_runs() -> None:
    async def scenario() -> None:
        counted: list[int] = []
        work = LargeWork("test", counted.append)
        gate = Gate()
        running = asyncio.create_task(work.run("a", gate.wait, scratch=7))
        waiting = asyncio.create_task(work.run("a", int, scratch=5))
        dropped = asyncio.create_task(work.run("a", int, scratch=3))
        await asyncio.sleep(0)
        assert counted == [7]
        dropped.cancel()
        # Its thread goes on.
        running.cancel()
        await asyncio.sleep(0)
        assert counted == [7]
        gate.set()
        await waiting
        assert counted == [7, -7, 5, -5]
        with pytest.raises(ZeroDivisionError):
            await work.run("b", divmod, 7, 0, scratch=2)
        assert counted[-2:] == [2, -2]
        work.close()

    asyncio.run(scenario())
