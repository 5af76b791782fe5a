"""A lane: one connection, which stores one batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

from config.server.batching.queues import QueueFigures
from config.server.batching.waits import Blocked
from config.telemetry.tracing import request_span, tracing

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    """A lane and the task that runs it; ``started_at`` is when its flush began."""

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
            self._figures.count_batch(len(tickets), now - tickets[0].submitted_at)
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
