"""The connections of a worker, their limits, and the choice of the one that makes room."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from config.server.connections.peers import Proxies, address_group
from config.server.connections.refusals import ClosingReason

# A sixth of the time for a body must bring this much of it: 500 bytes a second by default.
MIN_BODY_BYTES: Final = 5_000
_WINDOWS: Final = 6

Item = TypeVar("Item")

# What the connections of callers who are not recognized may hold of heads and bodies in all.
STRANGER_BYTES: Final = 16 * 1024 * 1024
# Strangers may hold a fifth of a worker's connections, but always 256. Closing a connection takes
# the event loop some ten microseconds, and one caller can close all of its own at once.
_STRANGER_DIVISOR: Final = 5
_FEWEST_STRANGERS: Final = 256
# Bytes that were held for less time than this close nobody, because recognizing a caller takes
# milliseconds.
_GRACE_SECONDS: Final = 0.5


class DeadlineQueue(Generic[Item]):
    """Items that each have the same number of seconds from their start.

    They expire in the order of their starts, so one timer serves all of them, and starting or
    stopping one takes constant time.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[Item], None]
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._expire = expire
        self._due: OrderedDict[Item, float] = OrderedDict()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._due)

    def start(self, item: Item) -> None:
        """Gives an item its time, from now on."""
        self._due[item] = due = self._loop.time() + self._seconds
        self._due.move_to_end(item)
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._expire_due)

    def stop(self, item: Item) -> None:
        self._due.pop(item, None)

    def _expire_due(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._due:
            item, due = next(iter(self._due.items()))
            if due > now:
                self._timer = self._loop.call_at(due, self._expire_due)
                return
            del self._due[item]
            self._expire(item)


class BodyClock:
    """Measures how long the service waits for the bytes of one body.

    It runs only while the application wants more of the body and none is there: neither the time
    for which we do not read nor the time for which the application works counts. A body has
    ``seconds`` in all, and each sixth of them must bring :data:`MIN_BODY_BYTES` of it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, seconds: float, expire: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._expire = expire
        self._left = seconds
        self._window = seconds / _WINDOWS
        self._window_left = self._window
        self._window_bytes = 0
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._since = self._loop.time()
        self._timer = self._loop.call_later(min(self._left, self._window_left), self._judge)

    def stop(self, received: int = 0) -> None:
        """Stops the clock; ``received`` is the number of bytes for which it ran."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._spend()
        self._window_bytes += received

    def _spend(self) -> None:
        now = self._loop.time()
        self._left -= now - self._since
        self._window_left -= now - self._since
        self._since = now

    def _judge(self) -> None:
        """Begins the next window, or ends the body if this one brought too little."""
        self._timer = None
        self._spend()
        if self._left <= 0 or self._window_bytes < MIN_BODY_BYTES:
            self._expire()
            return
        self._window_left, self._window_bytes = self._window, 0
        self.start()


class Guest(Protocol):
    """A connection, as the table sees it."""

    is_recognized: bool
    held_bytes: int
    pools: tuple[ConnectionGroup, ...]

    def is_responding(self) -> bool:
        """Returns whether a response has begun and has not ended."""

    def evict(self, reason: ClosingReason) -> None:
        """Closes the connection at once and removes it from the table."""


class ConnectionGroup:
    """The connections that share one limit: all of a worker, or those of one address.

    Those that may make room are kept in order, so that choosing one takes constant time:

    1. ``strangers``: no recognized caller has used them; the oldest first;
    2. ``responding``: strangers to whom a response is under way;
    3. ``resting``: recognized callers without a request; the longest resting first.

    A connection on which a recognized caller's request is under way never makes room.
    """

    __slots__ = ("address", "responding", "resting", "size", "strangers")

    def __init__(self, address: str = "") -> None:
        self.address = address
        self.size = 0
        self.strangers: OrderedDict[Guest, None] = OrderedDict()
        self.responding: OrderedDict[Guest, None] = OrderedDict()
        self.resting: OrderedDict[Guest, None] = OrderedDict()

    def choose_victim(self) -> Guest | None:
        """Returns the connection that makes room, or ``None`` if all are in use by known callers.

        A stranger moves to ``responding`` only when this method meets it, so nothing is tracked
        until a limit is reached.
        """
        while self.strangers:
            guest = next(iter(self.strangers))
            if not guest.is_responding():
                return guest
            del self.strangers[guest]
            self.responding[guest] = None
        for guests in (self.responding, self.resting):
            if guests:
                return next(iter(guests))
        return None

    def forget(self, guest: Guest) -> None:
        """Takes a connection out of the order; it is counted until it is removed."""
        self.strangers.pop(guest, None)
        self.responding.pop(guest, None)
        self.resting.pop(guest, None)


class ConnectionTable:
    """Admits connections within the limits of a worker and of each address."""

    def __init__(self, *, limit: int, limit_per_address: int, proxies: Proxies) -> None:
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._stranger_limit = max(limit // _STRANGER_DIVISOR, _FEWEST_STRANGERS)
        self._proxies = proxies
        self._all = ConnectionGroup()
        self._addresses: dict[str, ConnectionGroup] = {}
        self._held = 0
        self._holders: OrderedDict[Guest, float] = OrderedDict()

    def admit(self, guest: Guest, host: str) -> ClosingReason | None:
        """Adds a new connection, for which another one makes room; or returns why it may not."""
        pools = [self._all]
        if host not in self._proxies:
            group = address_group(host)
            pools.append(self._addresses.get(group) or ConnectionGroup(group))
            if not self._make_room(pools[-1], self._limit_per_address):
                return ClosingReason.ADDRESS_LIMIT
        if not self._make_room(self._all, self._limit):
            return ClosingReason.CONNECTION_LIMIT
        while len(self._all.strangers) >= self._stranger_limit:
            victim = self._all.choose_victim()
            if victim is None or victim not in self._all.strangers:
                break
            victim.evict(ClosingReason.MAKES_ROOM)
        guest.pools = tuple(pools)
        for pool in pools:
            pool.size += 1
            pool.strangers[guest] = None
            if pool.address:
                self._addresses[pool.address] = pool
        return None

    def recognize(self, guest: Guest) -> None:
        """Notes that a recognized caller uses the connection."""
        self.release(guest)
        for pool in guest.pools:
            pool.forget(guest)

    def begin(self, guest: Guest) -> None:
        """Notes that a request begins on a recognized caller's connection."""
        for pool in guest.pools:
            pool.resting.pop(guest, None)

    def rest(self, guest: Guest) -> None:
        """Notes that a response has ended and no other request waits on the connection."""
        if not guest.is_recognized:
            self.release(guest)
        for pool in guest.pools:
            if guest.is_recognized:
                pool.resting[guest] = None
            elif guest in pool.responding:
                del pool.responding[guest]
                # It goes back to the front, because it was the oldest.
                pool.strangers[guest] = None
                pool.strangers.move_to_end(guest, last=False)

    def remove(self, guest: Guest) -> None:
        """Forgets a connection; a second call has no effect."""
        self.release(guest)
        pools, guest.pools = guest.pools, ()
        for pool in pools:
            pool.forget(guest)
            pool.size -= 1
            if not pool.size:
                self._addresses.pop(pool.address, None)

    def hold(self, guest: Guest, count: int) -> None:
        """Counts bytes that a stranger's connection holds; too many in all close the oldest."""
        self._held += count
        guest.held_bytes += count
        now = time.monotonic()
        self._holders.setdefault(guest, now)
        while self._held > STRANGER_BYTES:
            oldest, since = next(iter(self._holders.items()))
            if now - since < _GRACE_SECONDS:
                break
            oldest.evict(ClosingReason.STRANGER_BYTES)

    def release(self, guest: Guest) -> None:
        """Notes that a connection holds nothing more as a stranger's."""
        if guest.held_bytes:
            self._held -= guest.held_bytes
            guest.held_bytes = 0
            del self._holders[guest]

    def _make_room(self, pool: ConnectionGroup, limit: int) -> bool:
        while pool.size >= limit:
            victim = pool.choose_victim()
            if victim is None:
                return False
            victim.evict(ClosingReason.MAKES_ROOM)
        return True
