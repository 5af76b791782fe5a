"""Bulkheads: what one key, one organization and all callers together may take of a worker.

A request enters once its caller is recognized, and before any of its body is read. Bodies, whole
answers and what streams keep are counted while they are in memory. What does not fit is refused, a
body or an answer before it is read, so a caller who takes too much is refused while all others are
served.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Final, Self, TypeVar
from uuid import UUID

from prometheus_client import Counter, Gauge

from config.api.errors import GatewayError, TooManyRequests, Unavailable
from config.database.outages import outages
from config.live_settings import settings
from config.server.load.large_work import LargeWork

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_RUNNING: Final = Gauge(
    "causeway_running_requests",
    "Requests of recognized callers that are running.",
    multiprocess_mode="livesum",
)
_BUFFERED: Final = Gauge(
    "causeway_buffered_bytes",
    "Bytes of requests, answers and what is made of them in memory.",
    multiprocess_mode="livesum",
)
_REFUSALS: Final = Counter(
    "causeway_budget_refusals_total", "Requests refused because a budget is used up.", ("reason",)
)
# Management requests of one organization that a worker runs at once: the others have as many of the
# worker's connections.
MANAGEMENT_TURNS: Final = max(1, settings.DATABASE_POOL_SIZE // 2)
# One log line an organization and reason in this time.
_LOG_SECONDS: Final = 1.0

# A request of this size is small. Small ones may take so much more of a worker's bytes, as a share,
# so that a few organizations with large ones do not keep all others out.
SMALL_BYTES: Final = 65_536
_SMALL_SHARE: Final = 8


class BulkheadBudget(StrEnum):
    """A budget that can be used up: the label ``reason`` of the metric."""

    CONCURRENCY = "organization_concurrency"
    KEY_BYTES = "key_bytes"
    ORGANIZATION_BYTES = "organization_bytes"
    WORKER_BYTES = "worker_bytes"
    LOOKUPS = "key_lookups"


_MESSAGES: Final = {
    BulkheadBudget.CONCURRENCY: (
        "The organization has {limit} requests running at once, the most that a worker allows. "
        "Wait for one of them to end."
    ),
    BulkheadBudget.KEY_BYTES: (
        "The requests of this key hold too many bytes at once; a key may use {limit} of its "
        "organization's buffers. Wait for one of them to end."
    ),
    BulkheadBudget.ORGANIZATION_BYTES: (
        "The organization's requests hold too many bytes at once; a worker buffers {limit} for an "
        "organization. Wait for one of them to end."
    ),
    BulkheadBudget.WORKER_BYTES: "The server's buffers are full. Try again shortly.",
    BulkheadBudget.LOOKUPS: "Too many unknown keys are being looked up. Try again shortly.",
}


class Bulkheads:
    """Counts the running requests and the buffered bytes of one worker.

    Only the worker's event loop calls it. An organization without a running request has no entry.
    """

    def __init__(self) -> None:
        self.organizations: dict[UUID, _Organization] = {}
        # The numbers of running requests and of buffered bytes.
        self.running = 0
        self.buffered = 0
        # All bytes that were given back since the start.
        self.released = 0
        self.large_work = LargeWork("large-work", self.count)
        # When an organization's refusals for a reason were logged, oldest first.
        self._logged: dict[tuple[UUID | None, BulkheadBudget], float] = {}

    @property
    def is_idle(self) -> bool:
        """Returns whether nothing runs, nothing is buffered and no organization has an entry."""
        return not (self.running or self.buffered or self.organizations)

    @property
    def is_shared(self) -> bool:
        """Returns whether requests of more than one organization are running."""
        return len(self.organizations) > 1

    def enter(
        self, organization_id: UUID, key_id: UUID, *, is_management: bool = False
    ) -> Occupancy:
        """Returns the context manager of a request; it raises :class:`TooManyRequests`.

        Management requests are counted apart, so that an organization can still disable an
        endpoint that uses up its inference requests.
        """
        return Occupancy(self, organization_id, key_id, is_management=is_management)

    def enter_operator(self) -> Occupancy:
        """Returns the context manager of an operator's request: only the worker bounds it."""
        return Occupancy(self, None, None)

    def refuse(self, budget: BulkheadBudget, organization_id: UUID | None = None) -> GatewayError:
        """Counts and logs a refusal, and returns its error: 429, or 503 if the worker is full."""
        _REFUSALS.labels(budget.value).inc()
        now = time.monotonic()
        while self._logged and next(iter(self._logged.values())) <= now - _LOG_SECONDS:
            del self._logged[next(iter(self._logged))]
        if (organization_id, budget) not in self._logged:
            self._logged[organization_id, budget] = now
            logger.warning(
                "the budget %s is used up%s: requests are refused",
                budget.value,
                "" if organization_id is None else f" by organization {organization_id}",
            )
        if budget in (BulkheadBudget.WORKER_BYTES, BulkheadBudget.LOOKUPS):
            return Unavailable(_MESSAGES[budget])
        return TooManyRequests(
            _MESSAGES[budget].format(limit=_limit_of(budget)), headers={"Retry-After": "1"}
        )

    def count(self, size: int) -> None:
        """Counts buffered bytes of the worker; a negative size gives them back."""
        self.buffered += size
        if size < 0:
            self.released -= size

    def show_figures(self) -> None:
        """Sets the gauges."""
        _RUNNING.set(self.running)
        _BUFFERED.set(self.buffered)


@dataclass(slots=True)
class _Organization:
    """The running requests and buffered bytes of one organization; the bytes also by key.

    ``running`` has the number of inference requests and that of management requests.
    """

    running: list[int] = field(default_factory=lambda: [0, 0])
    turns: asyncio.Semaphore | None = None
    buffered: int = 0
    keys: dict[UUID, int] = field(default_factory=dict)


class Occupancy:
    """Counts what one request takes of its worker, from the recognition of its caller on."""

    __slots__ = (
        "_bulkheads", "_is_management", "_is_over", "_kept", "_key_id", "_organization", "_unread",
        "held", "organization_id",
    )  # fmt: skip

    def __init__(
        self,
        bulkheads: Bulkheads,
        organization_id: UUID | None,
        key_id: UUID | None,
        *,
        is_management: bool = False,
    ) -> None:
        self._bulkheads = bulkheads
        self.organization_id = organization_id
        self._key_id = key_id
        self._is_management = is_management
        self._organization: _Organization | None = None
        self._is_over = False
        # The bytes that the request holds, those of its stream that its caller has to read yet, and
        # those that its stream keeps.
        self.held = self._unread = self._kept = 0

    def __enter__(self) -> Self:
        """Counts the request; raises :class:`TooManyRequests`."""
        bulkheads, owner = self._bulkheads, self.organization_id
        if owner is not None:
            organization = bulkheads.organizations.get(owner)
            if organization is None:
                organization = bulkheads.organizations[owner] = _Organization()
            elif organization.running[self._is_management] >= settings.ORGANIZATION_CONCURRENCY:
                raise bulkheads.refuse(BulkheadBudget.CONCURRENCY, owner)
            organization.running[self._is_management] += 1
            self._organization = organization
        bulkheads.running += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if held := self.held + self._unread + self._kept:
            self._count(-held)
            self.held = self._unread = self._kept = 0
        self._is_over = True
        bulkheads, organization = self._bulkheads, self._organization
        bulkheads.running -= 1
        if organization is not None and self.organization_id is not None:
            organization.running[self._is_management] -= 1
            if not any(organization.running):
                del bulkheads.organizations[self.organization_id]

    def reserve(self, size: int) -> None:
        """Counts bytes before they are read; a refusal counts none.

        Raises :class:`TooManyRequests` if the key or its organization holds too much, and
        :class:`Unavailable` if the worker does; large requests that fill the worker leave room for
        small ones. A key's share does not bind its only request, so
        that a single one can be as large as the organization may be.
        """
        bulkheads, organization, key_id = self._bulkheads, self._organization, self._key_id
        own = self.held + self._kept
        if organization is not None and key_id is not None:
            held = organization.keys.get(key_id, 0)
            if held > own + self._unread and held + size > _limit_of(BulkheadBudget.KEY_BYTES):
                raise bulkheads.refuse(BulkheadBudget.KEY_BYTES, self.organization_id)
            if organization.buffered + size > settings.ORGANIZATION_BUFFERED_BYTES:
                raise bulkheads.refuse(BulkheadBudget.ORGANIZATION_BYTES, self.organization_id)
        limit = settings.MAX_BUFFERED_BYTES
        if own + size <= SMALL_BYTES:
            limit += limit // _SMALL_SHARE
        if bulkheads.buffered + size > limit:
            raise bulkheads.refuse(BulkheadBudget.WORKER_BYTES, self.organization_id)
        self.held += size
        self._count(size)

    def keep(self, more: int) -> None:
        """Counts bytes that a stream keeps more than before; gives back what it keeps less.

        They are no part of :attr:`held`, because they outlive the body of the request. Raises the
        refusals of :meth:`reserve`.
        """
        if more > 0:
            self.reserve(more)
            self.held -= more
        else:
            self._count(more)
        self._kept += more

    def add(self, size: int) -> None:
        """Counts bytes that are in memory already; what comes later is refused for them."""
        self.held += size
        self._count(size)

    def note_unread(self, size: int) -> None:
        """Counts the bytes of a stream that wait for a slow caller, in place of those before."""
        if size != self._unread:
            self._count(size - self._unread)
            self._unread = size

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits for a turn among the organization's requests.

        A management request takes a thread and a connection to PostgreSQL, of which a worker has
        few. So only :data:`MANAGEMENT_TURNS` requests of an organization run at once, and the
        others wait without either. Raises :class:`Unavailable` if the database was silent to those
        that went before.
        """
        organization = self._organization
        if organization is None:
            yield
            return
        if organization.turns is None:
            organization.turns = asyncio.Semaphore(MANAGEMENT_TURNS)
        must_wait = organization.turns.locked()
        async with organization.turns:
            if must_wait and outages.is_silent:
                raise Unavailable
            yield

    async def run_large(self, function: Callable[[], Result]) -> Result:
        """Returns what large work returns, in the organization's turn: see :class:`LargeWork`."""
        return await self._bulkheads.large_work.run(self.organization_id, function)

    def release(self, size: int) -> None:
        """Gives bytes back that are no longer in memory."""
        assert 0 <= size <= self.held, "more bytes are released than were reserved"
        self.add(-size)

    def release_all(self) -> None:
        """Gives all bytes of the request back."""
        if self.held:
            self._count(-self.held)
            self.held = 0

    def _count(self, size: int) -> None:
        if self._is_over:
            # Nobody would give back what is counted now, such as a copy of an error's answer.
            return
        organization, key_id = self._organization, self._key_id
        if organization is not None and key_id is not None:
            organization.buffered += size
            held = organization.keys.pop(key_id, 0) + size
            if held:
                organization.keys[key_id] = held
        self._bulkheads.buffered += size
        if size < 0:
            self._bulkheads.released -= size


def _limit_of(budget: BulkheadBudget) -> int:
    """Returns the limit that a message names; a key's share is half of its organization's."""
    match budget:
        case BulkheadBudget.CONCURRENCY:
            limit: int = settings.ORGANIZATION_CONCURRENCY
        case BulkheadBudget.KEY_BYTES:
            limit = settings.ORGANIZATION_BUFFERED_BYTES // 2
        case _:
            limit = settings.ORGANIZATION_BUFFERED_BYTES
    return limit
