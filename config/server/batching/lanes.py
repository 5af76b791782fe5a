"""Lanes: natural batches in which a locked organization holds up no other one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import Context
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from uuid import UUID

from prometheus_client import Gauge

from config.server.batching.waits import Blocked, Suspects, waits
from config.server.load.figures import figures
from config.telemetry.tracing import request_span, tracing

_WAITING: Final = Gauge(
    "causeway_queue_items",
    "Items that wait for a statement of the data plane, by queue.",
    ("queue",),
    multiprocess_mode="livesum",
)
_WAITED: Final = figures.histogram(
    "causeway_queue_seconds",
    "How long the oldest item of a batch has waited for its statement to begin.",
    ("queue",),
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
_BATCH: Final = figures.histogram(
    "causeway_batch_items",
    "Items that share a statement of the data plane.",
    ("queue",),
    (1, 2, 4, 8, 16, 32, 64, 128, 256),
)

Item = TypeVar("Item")
Result = TypeVar("Result")

# How often waiting items are checked, and the least time between two tries of a blocked
# organization. A try itself waits for the lock.
_TEND_SECONDS: Final = 0.1

# The second shared lane begins when the first one's flush has run this long. Before that, larger
# batches cost less than an earlier start gains.
_SLOW_SECONDS: Final = 0.02
_DRAIN_POLL_SECONDS: Final = 0.02
# So many items need not wait for more: a longer batch would hold its locks longer.
_ENOUGH: Final = 32
# Items of a locked organization that may wait; each takes some kilobytes.
_MOST_BLOCKED: Final = 1_000


class QueueFigures:
    """The figures of one queue of a worker."""

    __slots__ = ("_gauge", "labels", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.labels = (name,)
        self._gauge = _WAITING.labels(name)

    def show(self, waiting: int) -> None:
        """Sets the number of items that wait in this worker."""
        self._gauge.set(waiting)


@dataclass(frozen=True)
class Lane(Generic[Item, Result]):
    """A connection with what it does: ``flush`` stores a batch, ``close`` ends the connection.

    ``flush`` gets the items in order and their organizations, and returns one result for each item.
    An exception in place of a result is raised to the waiter of that item; an exception that
    ``flush`` raises goes to the whole batch. :class:`Blocked` means that the item was not stored
    because of a lock: it is tried again.
    """

    flush: Callable[[list[Item], Collection[UUID]], Awaitable[Sequence[Result | BaseException]]]
    close: Callable[[], Awaitable[None]]


class Ticket(Generic[Item, Result]):
    """An item that waits or is in a flush, and the future of its result.

    ``on_abandoned`` gets the result of a flush whose future was cancelled meanwhile.
    """

    __slots__ = (
        "future", "is_taken", "item", "on_abandoned", "organization_id", "span", "submitted_at",
    )  # fmt: skip

    def __init__(
        self,
        organization_id: UUID,
        item: Item,
        future: asyncio.Future[Result],
        now: float,
        on_abandoned: Callable[[Result], None] | None = None,
    ) -> None:
        self.organization_id = organization_id
        self.item = item
        self.future = future
        self.submitted_at = now
        self.on_abandoned = on_abandoned
        self.is_taken = False
        # The span of the request, for that of the statement.
        self.span = None if tracing.tracer is None else request_span.get()

    def withdraw(self) -> bool:
        """Drops the item and returns True, unless a flush has it and may store it."""
        if self.is_taken:
            return False
        self.future.cancel()
        # The ticket stays in its queue for a while, and an item can be large.
        del self.item
        return True


class Runner(Generic[Item, Result]):
    """A lane and the task that runs it; ``started_at`` is when its flush began.

    The task has a context of its own: its log lines would else have the id of one request.
    """

    __slots__ = ("_figures", "lane", "started_at", "task")

    def __init__(self, lane: Lane[Item, Result], figures: QueueFigures) -> None:
        self.lane = lane
        self._figures = figures
        self.task: asyncio.Task[None] | None = None
        self.started_at: float | None = None

    async def flush(
        self, tickets: Sequence[Ticket[Item, Result]], organizations: Collection[UUID]
    ) -> tuple[list[Ticket[Item, Result]], UUID | None]:
        """Flushes a batch and sets the results.

        Returns the tickets that met a lock, and the organization that is locked, if it is known.
        """
        for ticket in tickets:
            ticket.is_taken = True
        self.started_at = now = asyncio.get_running_loop().time()
        if tickets:
            _BATCH.observe(self._figures.labels, len(tickets))
            # The oldest item comes first.
            _WAITED.observe(self._figures.labels, now - tickets[0].submitted_at)
        results: Sequence[Result | BaseException]
        try:
            results = await self.lane.flush([ticket.item for ticket in tickets], organizations)
        except Exception as exc:  # every waiter of the batch raises it
            results = [exc] * len(tickets)
        finally:
            self.started_at = None
        if tracing.tracer is not None:
            seconds = asyncio.get_running_loop().time() - now
            spans = [ticket.span for ticket in tickets]
            tracing.tracer.record_batch(self._figures.name, seconds, spans)
        blocked, owner = [], None
        for ticket, result in zip(tickets, results, strict=True):
            if isinstance(result, Blocked):
                ticket.is_taken = False
                blocked.append(ticket)
                owner = owner or result.organization_id
            elif ticket.future.done():
                if ticket.on_abandoned is not None and not isinstance(result, BaseException):
                    ticket.on_abandoned(result)
            elif isinstance(result, BaseException):
                ticket.future.set_exception(result)
            else:
                ticket.future.set_result(result)
        return blocked, owner


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
        self.apart: dict[UUID, _Apart[Item, Result]] = {}
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
        return sum(len(apart.waiting) for apart in self.apart.values())

    def serves(self, organization_id: UUID, now: float) -> bool:
        """Returns whether the items of an organization belong here."""
        return organization_id in self.apart or self._suspects.has(organization_id, now)

    def suspect(self, organization_id: UUID) -> None:
        """Makes all lanes of the worker serve an organization apart, because a lock is its own."""
        self._suspects.warn(organization_id, asyncio.get_running_loop().time())

    def add(self, organization_id: UUID, tickets: Sequence[Ticket[Item, Result]]) -> None:
        """Queues items of an organization, which is served apart from now on."""
        apart = self.apart.get(organization_id)
        if apart is None:
            apart = self.apart[organization_id] = _Apart(organization_id, self._limit)
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
            runner.task = asyncio.get_running_loop().create_task(
                self._run(runner), context=Context()
            )

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
        del self.apart[organization_id]
        self._turns.pop(organization_id, None)
        self._blocked_turns.pop(organization_id, None)
        self._give_back(organization_id, apart.waiting)

    def _tend_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_TEND_SECONDS, self._tend)

    def _tend(self) -> None:
        """Refuses items that waited too long, tries those that are due, closes what is idle."""
        now = asyncio.get_running_loop().time()
        for apart in list(self.apart.values()):
            if self._patience is not None:
                apart.refuse(now - self._patience, Blocked())
            apart.forget_done()
            if not apart.waiting:
                self._turns.pop(apart.organization_id, None)
                self._blocked_turns.pop(apart.organization_id, None)
                self._release(apart)
        waits.report_blocked(self._name, len(self._blocked_turns) + self._blocked_lanes)
        self._timer = None
        if self.apart:
            self.start()
            self._tend_later()
            return
        for runner in self.runners:
            if runner.task is None:
                runner.task = asyncio.get_running_loop().create_task(
                    self._close(runner), context=Context()
                )

    async def _close(self, runner: Runner[Item, Result]) -> None:
        """Closes the connection of a side lane, which may not be needed for long."""
        try:
            await runner.lane.close()
        finally:
            runner.task = None
        self.start()


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
        self._suspects = suspects
        self._sides = Sides(
            name,
            [Runner(open_lane(True), self._figures) for _ in range(side)],
            suspects,
            self._busy,
            self._take_back,
            limit=limit,
            patience=patience,
        )
        # Set once enough items wait, or enough time has passed, for the next flush to begin.
        self._enough: asyncio.Event | None = None
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
        if (self._sides.apart or self._suspects.known) and self._sides.serves(organization_id, now):
            self._set_apart([ticket])
            return ticket
        queue = self._queues.get(organization_id)
        if queue is None:
            self._queues[organization_id] = [ticket]
        else:
            queue.append(ticket)
        if self._enough is not None and sum(map(len, self._queues.values())) >= _ENOUGH:
            self._enough.set()
        self._start()
        return ticket

    def is_full(self, organization_id: UUID) -> bool:
        """Returns whether a locked organization has as many waiting items as it may have."""
        apart = self._sides.apart.get(organization_id)
        return apart is not None and len(apart.waiting) >= _MOST_BLOCKED

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
            first.task = asyncio.get_running_loop().create_task(self._run(first), context=Context())
        elif self._is_slow:
            for runner in others:
                if runner.task is None:
                    runner.task = asyncio.get_running_loop().create_task(
                        self._run(runner), context=Context()
                    )
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
        waiting = self._queues.values
        if sum(map(len, waiting())) >= self._limit:
            return
        await asyncio.sleep(self._pause)
        loop = asyncio.get_running_loop()
        left = self._began_at + self._interval - loop.time()
        if left > 0 and sum(map(len, waiting())) < _ENOUGH:
            self._enough = asyncio.Event()
            timer = loop.call_later(left, self._enough.set)
            try:
                await self._enough.wait()
            finally:
                timer.cancel()
                self._enough = None

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
        elif self._sides.apart:
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
