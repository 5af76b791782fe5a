"""Side lanes: where organizations are served apart while their rows are locked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic
from uuid import UUID

from config.server.batching.lane import Item, Result, Runner, Ticket
from config.server.batching.suspects import Suspects
from config.server.batching.waits import Blocked, waits

# How often waiting items are checked, and the least time between two tries of a blocked
# organization. A try itself waits for the lock.
_TEND_SECONDS: Final = 0.1


class _Apart(Generic[Item, Result]):
    """The waiting items of an organization that is served apart.

    ``is_blocked`` says that its own last batch met a lock. ``size`` is the length of its next
    batch. It is halved when a batch is blocked, and doubled when one is stored: one locked row of
    an organization then does not hold up its other items.
    """

    __slots__ = ("due_at", "is_blocked", "organization_id", "size", "waiting")

    def __init__(self, organization_id: UUID, size: int) -> None:
        self.organization_id = organization_id
        self.size = size
        self.due_at = 0.0
        self.is_blocked = False
        self.waiting: list[Ticket[Item, Result]] = []

    def take(self) -> list[Ticket[Item, Result]]:
        """Removes and returns the next batch."""
        taken, self.waiting = self.waiting[: self.size], self.waiting[self.size :]
        return [ticket for ticket in taken if not ticket.future.done()]

    def refuse(self, submitted_before: float, error: BaseException) -> None:
        """Refuses the items that were submitted before a time, if the organization is blocked."""
        for ticket in self.waiting:
            if (
                self.is_blocked
                and ticket.submitted_at < submitted_before
                and not ticket.future.done()
            ):
                ticket.future.set_exception(error)

    def forget_done(self) -> None:
        """Forgets the items that were refused or withdrawn."""
        self.waiting = [ticket for ticket in self.waiting if not ticket.future.done()]


class Sides(Generic[Item, Result]):
    """Serves organizations in batches of their own, in a bounded number of lanes, in turn.

    An organization whose batch meets a lock is tried again until it is stored. Blocked
    organizations leave one lane to those that only shared a batch with them. An organization
    returns to the shared lanes, with ``give_back``, some time after it was stored
    (:class:`Suspects`). ``busy`` has the organizations that are in a flush of any lane.
    ``patience`` is how long a blocked item is tried before :class:`Blocked` is raised to its
    waiter; ``None`` is for ever.
    """

    def __init__(
        self,
        name: str,
        runners: Sequence[Runner[Item, Result]],
        suspects: Suspects,
        busy: set[UUID],
        give_back: Callable[[UUID, list[Ticket[Item, Result]]], None],
        *,
        limit: int,
        patience: float | None,
    ) -> None:
        self._name = name
        self.runners = runners
        self._suspects = suspects
        self._busy = busy
        self._give_back = give_back
        self._limit = limit
        self._patience = patience
        # The organizations that are served apart. Those of them that have items stand in one of two
        # queues: the blocked ones, and the others.
        self._apart: dict[UUID, _Apart[Item, Result]] = {}
        self._turns: dict[UUID, _Apart[Item, Result]] = {}
        self._blocked_turns: dict[UUID, _Apart[Item, Result]] = {}
        self._blocked_lanes = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_waiting(self) -> bool:
        """Whether items wait for their turn."""
        return bool(self._turns or self._blocked_turns)

    @property
    def waiting(self) -> int:
        """The number of items that wait here."""
        return sum(len(apart.waiting) for apart in self._apart.values())

    def serves(self, organization_id: UUID, now: float) -> bool:
        """Returns whether the items of an organization belong here."""
        if not self._apart and not self._suspects:
            return False
        return organization_id in self._apart or self._suspects.has(organization_id, now)

    def suspect(self, organization_id: UUID) -> None:
        """Makes all lanes of the worker serve an organization apart, because a lock is its own."""
        self._suspects.warn(organization_id, asyncio.get_running_loop().time())

    def count(self, organization_id: UUID) -> int:
        """Returns the number of items of an organization that wait here."""
        apart = self._apart.get(organization_id)
        return 0 if apart is None else len(apart.waiting)

    def add(self, organization_id: UUID, tickets: Sequence[Ticket[Item, Result]]) -> None:
        """Queues items of an organization, which is served apart from now on."""
        apart = self._apart.get(organization_id)
        if apart is None:
            apart = self._apart[organization_id] = _Apart(organization_id, self._limit)
            if self._timer is None:
                self._tend_later()
        apart.waiting += tickets
        turns = self._blocked_turns if apart.is_blocked else self._turns
        turns.setdefault(organization_id, apart)

    def start(self) -> None:
        """Starts idle lanes for the organizations that wait for their turn."""
        waiting = len(self._turns) + len(self._blocked_turns)
        if not waiting:
            return
        idle = [runner for runner in self.runners if runner.task is None]
        for runner in idle[:waiting]:
            runner.task = asyncio.get_running_loop().create_task(self._run(runner))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def _run(self, runner: Runner[Item, Result]) -> None:
        try:
            while (apart := self._next_turn()) is not None:
                tickets = apart.take()
                self._queue(apart)
                if tickets and (blocked := await self._flush(runner, apart, tickets)):
                    self._keep(apart, blocked)
                else:
                    apart.is_blocked = False
                    apart.size = min(apart.size * 2, self._limit)
                    self._queue(apart)
                    self._release(apart)
        finally:
            runner.task = None

    async def _flush(
        self,
        runner: Runner[Item, Result],
        apart: _Apart[Item, Result],
        tickets: list[Ticket[Item, Result]],
    ) -> list[Ticket[Item, Result]]:
        was_blocked = apart.is_blocked
        self._busy.add(apart.organization_id)
        self._blocked_lanes += was_blocked
        try:
            blocked, _ = await runner.flush(tickets, [apart.organization_id])
        finally:
            self._blocked_lanes -= was_blocked
            self._busy.discard(apart.organization_id)
        return blocked

    def _next_turn(self) -> _Apart[Item, Result] | None:
        """Returns the next organization that is due and in no flush; blocked ones come last."""
        queues = [self._turns]
        if self._blocked_lanes < max(1, len(self.runners) - 1):
            queues.append(self._blocked_turns)
        now = asyncio.get_running_loop().time()
        for queue in queues:
            for organization_id, apart in queue.items():
                if apart.due_at <= now and organization_id not in self._busy:
                    return apart
        return None

    def _queue(self, apart: _Apart[Item, Result]) -> None:
        """Puts an organization at the end of its queue, if it has items."""
        self._turns.pop(apart.organization_id, None)
        self._blocked_turns.pop(apart.organization_id, None)
        if apart.waiting:
            self.add(apart.organization_id, ())

    def _keep(self, apart: _Apart[Item, Result], blocked: list[Ticket[Item, Result]]) -> None:
        """Queues the blocked items of an organization again.

        They go behind its other items, because one of them may be the only one that needs the
        locked row.
        """
        now = asyncio.get_running_loop().time()
        self._suspects.accuse(apart.organization_id, now)
        apart.is_blocked = True
        apart.size = max(1, len(blocked) // 2)
        apart.due_at = now + _TEND_SECONDS
        apart.waiting += blocked
        self._queue(apart)

    def _release(self, apart: _Apart[Item, Result]) -> None:
        """Gives an organization back to the shared lanes, unless it is still a suspect."""
        organization_id = apart.organization_id
        now = asyncio.get_running_loop().time()
        if organization_id in self._busy or self._suspects.has(organization_id, now):
            return
        del self._apart[organization_id]
        self._turns.pop(organization_id, None)
        self._blocked_turns.pop(organization_id, None)
        self._give_back(organization_id, apart.waiting)

    def _tend_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_TEND_SECONDS, self._tend)

    def _tend(self) -> None:
        """Refuses items that waited too long, tries those that are due, closes what is idle."""
        now = asyncio.get_running_loop().time()
        for apart in list(self._apart.values()):
            if self._patience is not None:
                apart.refuse(now - self._patience, Blocked())
            apart.forget_done()
            if not apart.waiting:
                self._turns.pop(apart.organization_id, None)
                self._blocked_turns.pop(apart.organization_id, None)
                self._release(apart)
        waits.report_blocked(self._name, len(self._blocked_turns) + self._blocked_lanes)
        self._timer = None
        if self._apart:
            self.start()
            self._tend_later()
            return
        for runner in self.runners:
            if runner.task is None:
                runner.task = asyncio.get_running_loop().create_task(self._close(runner))

    async def _close(self, runner: Runner[Item, Result]) -> None:
        """Closes the connection of a side lane, which may not be needed for long."""
        try:
            await runner.lane.close()
        finally:
            runner.task = None
        self.start()
