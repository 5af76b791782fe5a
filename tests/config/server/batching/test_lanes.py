"""Lanes pass batches on, and serve an organization apart while its rows are locked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any
from uuid import UUID

import pytest

from config.server import logs
from config.server.batching.batcher import Batcher
from config.server.batching.lanes import Lane, Lanes
from config.server.batching.waits import Blocked, Suspects

A, B, C = (UUID(int=number) for number in (1, 2, 3))


class Database:
    """Stores items, except those that are locked; waits at its gate while that is closed."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.stored: list[Any] = []
        self.locked: set[Any] = set()
        # The organization that a lock is known to belong to.
        self.owner: UUID | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.opened = 0
        self.closed = 0

    def open_lane(self, is_apart: bool = False) -> Lane[Any, str]:
        self.opened += 1
        return Lane(self.flush, self.close)

    async def flush(
        self, batch: list[Any], organizations: Collection[UUID]
    ) -> Sequence[str | BaseException]:
        self.batches.append(batch)
        await asyncio.sleep(0)
        if self.locked.intersection(batch):
            raise Blocked(self.owner)
        await self.gate.wait()
        self.stored += batch
        return [ValueError(item) if item == "faulty" else f"{item}!" for item in batch]

    async def close(self) -> None:
        self.closed += 1


def run(test: Callable[[Database, Lanes[Any, str]], Awaitable[None]], **options: Any) -> None:
    async def start() -> None:
        database = Database()
        lanes: Lanes[Any, str] = Lanes("test", database.open_lane, Suspects(), **options)
        async with asyncio.timeout(60):
            await test(database, lanes)
            await lanes.close()
        assert database.closed >= database.opened

    asyncio.run(start())


def test_items_that_are_submitted_together_share_a_flush() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        tickets = [lanes.submit(each, item) for each, item in ((A, 1), (B, 2), (A, 3))]
        assert [await ticket.future for ticket in tickets] == ["1!", "2!", "3!"]
        assert database.batches == [[1, 3, 2]]

    run(test)


def test_an_exception_of_one_item_reaches_its_waiter_alone() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        good, faulty = lanes.submit(A, 1), lanes.submit(A, "faulty")
        with pytest.raises(ValueError, match="faulty"):
            await faulty.future
        assert await good.future == "1!"

    run(test)


def test_a_slow_flush_lets_the_second_lane_begin_with_other_organizations() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.gate.clear()
        first = lanes.submit(A, 1)
        await asyncio.sleep(0)
        same, other = lanes.submit(A, 2), lanes.submit(B, 3)
        while len(database.batches) < 2:
            await asyncio.sleep(0.01)
        assert database.batches == [[1], [3]]
        database.gate.set()
        assert [await each.future for each in (first, same, other)] == ["1!", "2!", "3!"]
        assert database.batches == [[1], [3], [2]]

    run(test)


def test_few_items_wait_for_the_interval_and_many_do_not() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        await lanes.submit(A, "first").future
        later = lanes.submit(A, "second")
        while len(lanes._queues[A]) < 31:
            lanes.submit(A, "more")
        await asyncio.sleep(0.05)
        assert database.batches == [["first"]]
        lanes.submit(B, "last")
        assert await later.future == "second!"
        assert database.batches == [["first"], ["second", *["more"] * 30, "last"]]

    run(test, pause=0.001, interval=3600)


def test_items_behind_a_full_batch_of_withdrawn_ones_are_flushed() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.gate.clear()
        first = lanes.submit(B, 0)
        while not database.batches:
            await asyncio.sleep(0)
        left = [lanes.submit(A, number) for number in range(4)]
        stays = lanes.submit(A, "stays")
        for ticket in left:
            assert ticket.withdraw()
        database.gate.set()
        assert await first.future == "0!"
        async with asyncio.timeout(60):
            assert await stays.future == "stays!"

    run(test, limit=4)


def test_organizations_share_a_full_flush() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        for number in range(6):
            lanes.submit(A, number)
        last = lanes.submit(B, "b")
        await lanes.drain()
        assert await last.future == "b!"
        assert database.batches == [[0, 1, "b"], [2, 3, 4, 5]]

    run(test, limit=4, pause=0.001, shared=1)


def test_a_locked_organization_is_served_apart_and_the_others_at_once() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked = {"a"}
        locked, *free = [lanes.submit(each, item) for each, item in ((A, "a"), (B, "b"), (C, "c"))]
        assert [await ticket.future for ticket in free] == ["b!", "c!"]
        assert database.batches[0] == ["a", "b", "c"]
        # The shared lanes no longer meet the lock.
        assert await lanes.submit(B, "b2").future == "b2!"
        later = lanes.submit(A, "a2")
        assert await lanes.submit(C, "c2").future == "c2!"
        assert [batch for batch in database.batches[1:] if len(batch) > 1] in ([], [["a", "a2"]])
        assert not locked.future.done()
        database.locked.clear()
        assert [await locked.future, await later.future] == ["a!", "a2!"]
        assert sorted(database.stored) == ["a", "a2", "b", "b2", "c", "c2"]

    run(test)


def test_all_others_are_flushed_again_together_if_the_locked_organization_is_known() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked, database.owner = {"a"}, A
        locked, *free = [lanes.submit(each, item) for each, item in ((A, "a"), (B, "b"), (C, "c"))]
        assert [await ticket.future for ticket in free] == ["b!", "c!"]
        assert ["b", "c"] in database.batches
        assert ["b"] not in database.batches
        database.locked.clear()
        assert await locked.future == "a!"
        assert sorted(database.stored) == ["a", "b", "c"]

    run(test)


def test_a_second_lock_of_a_batch_sets_all_others_apart() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked, database.owner = {"a", "b"}, A
        tickets = [lanes.submit(each, item) for each, item in ((A, "a"), (B, "b"), (C, "c"))]
        assert await tickets[2].future == "c!"
        assert [batch for batch in database.batches if len(batch) > 1] == [
            ["a", "b", "c"],
            ["b", "c"],
        ]
        database.locked.clear()
        assert [await ticket.future for ticket in tickets] == ["a!", "b!", "c!"]

    run(test)


def test_an_organization_returns_to_the_shared_lanes_after_its_lock() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked = {"a"}
        locked = lanes.submit(A, "a")
        while len(database.batches) < 3:
            await asyncio.sleep(0.01)
        database.locked.clear()
        await locked.future
        while database.batches[-1] != ["a3", "b3"]:
            await asyncio.gather(lanes.submit(A, "a3").future, lanes.submit(B, "b3").future)

    run(test)


def test_one_locked_row_of_an_organization_does_not_hold_up_its_other_items() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked = {3}
        tickets = [lanes.submit(A, item) for item in range(8)]
        others = [ticket for ticket in tickets if ticket.item != 3]
        assert sorted([await ticket.future for ticket in others]) == [
            f"{item}!" for item in (0, 1, 2, 4, 5, 6, 7)
        ]
        assert not tickets[3].future.done()
        database.locked.clear()
        assert await tickets[3].future == "3!"
        assert sorted(database.stored) == list(range(8))

    run(test)


def test_more_locked_organizations_than_side_lanes_take_turns() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked = set(range(9))
        tickets = [lanes.submit(UUID(int=item), item) for item in range(10)]
        assert await tickets[9].future == "9!"
        tried = {item for batch in database.batches if len(batch) == 1 for item in batch}
        while not tried >= database.locked:
            await asyncio.sleep(0.01)
            tried |= {item for batch in database.batches if len(batch) == 1 for item in batch}
        database.locked.clear()
        for ticket in tickets:
            await ticket.future
        assert sorted(database.stored) == list(range(10))

    run(test, side=2)


def test_a_blocked_item_is_refused_when_its_patience_ends() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked = {"a"}
        locked = lanes.submit(A, "a")
        with pytest.raises(Blocked) as error:
            await locked.future
        assert error.value.headers == {"Retry-After": "1"}
        assert error.value.status == 503
        tries = len(database.batches)
        database.locked.clear()
        await lanes.drain()
        assert database.stored == []
        assert len(database.batches) == tries

    run(test, patience=0.3)


def test_a_waiting_item_can_be_withdrawn_and_is_not_stored() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.gate.clear()
        running = lanes.submit(A, 1)
        await asyncio.sleep(0)
        waiting = lanes.submit(A, 2)
        assert waiting.withdraw()
        assert not running.withdraw()
        database.gate.set()
        await lanes.drain()
        assert database.stored == [1]
        assert await running.future == "1!"

    run(test)


def test_a_withdrawn_item_that_a_lock_stopped_is_not_tried_again() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked = {"a"}
        locked = lanes.submit(A, "a")
        while not locked.withdraw():
            await asyncio.sleep(0)
        tries = len(database.batches)
        database.locked.clear()
        await lanes.drain()
        assert (database.stored, len(database.batches)) == ([], tries)

    run(test)


def test_a_waiter_that_is_cancelled_does_not_affect_its_batch() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.gate.clear()
        left, stays = lanes.submit(A, 1), lanes.submit(A, 2)
        await asyncio.sleep(0)
        left.future.cancel()
        database.gate.set()
        assert await stays.future == "2!"

    run(test)


def test_a_result_whose_waiter_was_cancelled_is_handed_over() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        abandoned: list[str] = []
        database.gate.clear()
        left = lanes.submit(A, 1, abandoned.append)
        lanes.submit(A, 2, abandoned.append)
        await asyncio.sleep(0)
        left.future.cancel()
        assert not left.withdraw()
        database.gate.set()
        await lanes.drain()
        assert abandoned == ["1!"]

    run(test)


def test_drain_waits_for_items_of_locked_organizations() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked = {"a"}
        locked = lanes.submit(A, "a")
        draining = asyncio.create_task(lanes.drain())
        while len(database.batches) < 3:
            await asyncio.sleep(0.01)
        assert not draining.done()
        database.locked.clear()
        await draining
        assert locked.future.result() == "a!"

    run(test)


def test_an_organization_that_other_lanes_found_locked_goes_apart_at_once() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        suspects = Suspects()
        found: Lanes[Any, str] = Lanes("other", database.open_lane, suspects)
        suspects.accuse(A, asyncio.get_running_loop().time())
        apart, shared = found.submit(A, "a"), found.submit(B, "b")
        await asyncio.gather(apart.future, shared.future)
        assert sorted(database.batches) == [["a"], ["b"]]
        await found.close()

    run(test)


def test_a_suspect_stays_apart_longer_after_each_further_lock() -> None:
    suspects = Suspects()
    suspects.accuse(A, 100.0)
    assert (suspects.has(A, 100.9), suspects.has(A, 101.0)) == (True, False)
    suspects.accuse(A, 101.0)
    suspects.accuse(A, 101.5)  # the same lock
    assert (suspects.has(A, 103.4), suspects.has(A, 103.5)) == (True, False)
    suspects.accuse(A, 103.5)
    assert (suspects.has(A, 107.4), suspects.has(A, 107.5)) == (True, False)
    # It is forgotten a minute later.
    suspects.accuse(B, 168.0)
    suspects.accuse(A, 168.0)
    assert (suspects.has(A, 168.9), suspects.has(A, 169.0)) == (True, False)


def test_lanes_are_full_for_a_locked_organization_with_a_thousand_items() -> None:
    async def test(database: Database, lanes: Lanes[Any, str]) -> None:
        database.locked, database.owner = set(range(1_001)), A
        tickets = [lanes.submit(A, item) for item in range(1_001)]
        tickets.append(lanes.submit(B, "b"))
        assert not lanes.is_full(A)
        while not lanes.is_full(A):
            await asyncio.sleep(0.01)
        assert not lanes.is_full(B)
        database.locked.clear()
        for ticket in tickets:
            await ticket.future
        assert not lanes.is_full(A)

    run(test)


def test_what_many_requests_share_has_the_id_of_none() -> None:
    seen: list[str] = []

    async def flush(batch: list[Any], _: Collection[UUID] = ()) -> Sequence[str | BaseException]:
        seen.append(logs.request_id.get())
        return [Blocked() if len(seen) == 1 else "stored"] * len(batch)

    async def close() -> None:
        seen.append(logs.request_id.get())

    async def submit() -> None:
        logs.request_id.set("one of many")
        lanes: Lanes[Any, str] = Lanes("test", lambda is_apart: Lane(flush, close), Suspects())
        batcher: Batcher[Any, str] = Batcher(flush)
        async with asyncio.timeout(60):
            assert await lanes.submit(A, "a").future == "stored"
            assert await batcher.submit("b") == "stored"

    asyncio.run(submit())
    assert seen == [""] * 3
