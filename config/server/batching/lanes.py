"""Lanes: natural batches in which a locked organization holds up no other one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic
from uuid import UUID

from config.server.batching.lane import Item, Lane, Result, Runner, Ticket
from config.server.batching.queues import QueueFigures
from config.server.batching.sides import Sides
from config.server.batching.suspects import Suspects

# The second shared lane begins when the first one's flush has run this long. Before that, larger
# batches cost less than an earlier start gains.
_SLOW_SECONDS: Final = 0.02
_DRAIN_POLL_SECONDS: Final = 0.02
# So many items need not wait for more: a longer batch would hold its locks longer.
_ENOUGH: Final = 32
# Items of a locked organization that may wait; each takes some kilobytes.
_MOST_BLOCKED: Final = 1_000


class Lanes(Generic[Item, Result]):
    """Collects items while flushes run; an organization is in one flush at a time.

    A free shared lane takes the items of all organizations that are in no flush. The organizations
    of a batch that met a lock are tried apart, each in a batch of its own, in side lanes, and those
    that meet a lock there stay apart (:class:`Sides`).

    ``open_lane`` opens a shared lane, or a side lane if its argument is true.

    ``pause`` delays each shared flush, for items that nobody waits for. ``interval`` is the least
    time between the starts of two shared flushes of few items: each flush writes a new version of
    the same rows. ``patience`` is how long a blocked item is tried before :class:`Blocked` is
    raised to its waiter; ``None`` is for ever.
    """

    def __init__(
        self,
        name: str,
        open_lane: Callable[[bool], Lane[Item, Result]],
        suspects: Suspects,
        *,
        shared: int = 2,
        side: int = 4,
        limit: int = 256,
        pause: float = 0,
        interval: float = 0,
        patience: float | None = None,
    ) -> None:
        self._limit = limit
        self._pause = pause
        self._interval = interval
        self._began_at = -interval
        self._figures = QueueFigures(name)
        self._shared = [Runner(open_lane(False), self._figures) for _ in range(shared)]
        self._queues: dict[UUID, list[Ticket[Item, Result]]] = {}
        self._busy: set[UUID] = set()
        self._sides = Sides(
            name,
            [Runner(open_lane(True), self._figures) for _ in range(side)],
            suspects,
            self._busy,
            self._take_back,
            limit=limit,
            patience=patience,
        )
        # Whether the first lane's flush is slow, and the timer that finds out.
        self._is_slow = False
        self._timer: asyncio.TimerHandle | None = None

    def submit(
        self,
        organization_id: UUID,
        item: Item,
        on_abandoned: Callable[[Result], None] | None = None,
    ) -> Ticket[Item, Result]:
        """Queues an item of an organization; never blocks.

        ``on_abandoned`` gets the result if the ticket's future is cancelled while a flush has it.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        ticket: Ticket[Item, Result] = Ticket(
            organization_id, item, loop.create_future(), now, on_abandoned
        )
        if self._sides.serves(organization_id, now):
            self._set_apart([ticket])
            return ticket
        queue = self._queues.get(organization_id)
        if queue is None:
            self._queues[organization_id] = [ticket]
        else:
            queue.append(ticket)
        self._start()
        return ticket

    def is_full(self, organization_id: UUID) -> bool:
        """Returns whether a locked organization has as many waiting items as it may have."""
        return self._sides.count(organization_id) >= _MOST_BLOCKED

    def show_figures(self) -> None:
        """Sets the number of items that wait."""
        self._figures.show(sum(map(len, self._queues.values())) + self._sides.waiting)

    async def drain(self) -> None:
        """Waits until no item is queued and no flush is running."""
        while True:
            if tasks := self._tasks():
                await asyncio.wait(tasks)
            elif self._queues or self._sides.has_waiting:
                await asyncio.sleep(_DRAIN_POLL_SECONDS)
            else:
                return

    async def close(self) -> None:
        """Ends all flushes and connections."""
        self._sides.close()
        if self._timer is not None:
            self._timer.cancel()
        tasks = self._tasks()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for runner in (*self._shared, *self._sides.runners):
            await runner.lane.close()

    def _tasks(self) -> list[asyncio.Task[None]]:
        runners = (*self._shared, *self._sides.runners)
        return [runner.task for runner in runners if runner.task is not None]

    def _start(self) -> None:
        """Starts the first lane; if it is slow, another one."""
        first, *others = self._shared
        if first.task is None:
            first.task = asyncio.get_running_loop().create_task(self._run(first))
        elif self._is_slow:
            for runner in others:
                if runner.task is None:
                    runner.task = asyncio.get_running_loop().create_task(self._run(runner))
                    return

    async def _run(self, runner: Runner[Item, Result]) -> None:
        first = self._shared[0]
        try:
            while self._queues and (runner is first or first.task is None or self._is_slow):
                if self._pause:
                    await self._wait_for_more()
                tickets, organizations = self._take()
                if tickets:
                    await self._flush(runner, tickets, organizations)
                elif self._queues.keys() <= self._busy:
                    break
        finally:
            runner.task = None

    async def _wait_for_more(self) -> None:
        """Waits for items that may share the next flush, unless there is a whole batch."""
        now = asyncio.get_running_loop().time
        waiting = sum(map(len, self._queues.values()))
        if waiting >= self._limit:
            return
        await asyncio.sleep(self._pause)
        while waiting < _ENOUGH and (left := self._began_at + self._interval - now()) > 0:
            await asyncio.sleep(min(self._pause, left))
            waiting = sum(map(len, self._queues.values()))

    def _take(self) -> tuple[list[Ticket[Item, Result]], list[UUID]]:
        """Removes and returns the items of all organizations that are in no flush.

        If they are too many, each organization has the same share, and those that still have items
        go behind the others.
        """
        queues, limit = self._queues, self._limit
        free = [each for each in queues if each not in self._busy]
        is_full = sum(len(queues[each]) for each in free) > limit
        share = max(1, limit // len(free)) if is_full else limit
        tickets: list[Ticket[Item, Result]] = []
        organizations = []
        for organization_id in free:
            queue = queues.pop(organization_id)
            if len(queue) > share:
                queues[organization_id] = queue[share:]
                del queue[share:]
            if taken := [ticket for ticket in queue if not ticket.future.done()]:
                organizations.append(organization_id)
                tickets += taken
                if len(tickets) >= limit:
                    break
        return tickets, organizations

    async def _flush(
        self,
        runner: Runner[Item, Result],
        tickets: list[Ticket[Item, Result]],
        organizations: list[UUID],
    ) -> None:
        """Flushes a batch of one or many organizations; sets those apart that meet a lock.

        If the locked organization is known, all others are flushed again at once. A second lock
        sets all that meet it apart: each try costs them the wait.
        """
        is_first = runner is self._shared[0]
        loop = asyncio.get_running_loop()
        self._began_at = loop.time()
        if is_first and self._timer is None:
            self._timer = loop.call_later(_SLOW_SECONDS, self._notice_slow)
        self._busy.update(organizations)
        try:
            blocked, owner = await runner.flush(tickets, organizations)
            if owner is not None and len(organizations) > 1:
                self._sides.suspect(owner)
                self._set_apart([each for each in blocked if each.organization_id == owner])
                others = [each for each in blocked if each.organization_id != owner]
                blocked = await self._flush_again(runner, others)
        finally:
            self._busy.difference_update(organizations)
            if is_first:
                self._is_slow = False
        if blocked:
            self._set_apart(blocked)
        else:
            self._sides.start()

    async def _flush_again(
        self, runner: Runner[Item, Result], tickets: list[Ticket[Item, Result]]
    ) -> list[Ticket[Item, Result]]:
        """Flushes the rest of a batch that met a lock, and returns the tickets that meet one."""
        tickets = [ticket for ticket in tickets if not ticket.future.done()]
        if not tickets:
            return []
        blocked, _ = await runner.flush(tickets, {ticket.organization_id for ticket in tickets})
        return blocked

    def _notice_slow(self) -> None:
        """Starts the second lane if the flush of the first one is slow."""
        self._timer = None
        started_at = self._shared[0].started_at
        if started_at is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < started_at + _SLOW_SECONDS:
            self._timer = loop.call_at(started_at + _SLOW_SECONDS, self._notice_slow)
            return
        self._is_slow = True
        if self._queues:
            self._start()

    def _set_apart(self, tickets: list[Ticket[Item, Result]]) -> None:
        """Queues items at the side lanes, with all others of their organizations."""
        for ticket in tickets:
            others = self._queues.pop(ticket.organization_id, [])
            self._sides.add(ticket.organization_id, [ticket, *others])
        self._sides.start()

    def _take_back(self, organization_id: UUID, tickets: list[Ticket[Item, Result]]) -> None:
        """Queues an organization's items at the shared lanes again."""
        if tickets:
            self._queues.setdefault(organization_id, []).extend(tickets)
        if self._queues:
            self._start()
