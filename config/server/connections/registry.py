"""What the connections of one worker share: the table, the deadlines and the counts."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final, Protocol, Self

from django.conf import settings

from config.server.bodies import largest_file_body
from config.server.connections.open_files import fitting_connections
from config.server.connections.peers import Proxies
from config.server.connections.refusals import Refusals
from config.server.connections.table import ConnectionTable, DeadlineQueue

# After the last response, a caller may be silent for so long, send for so long, and send so much
# more than the largest body.
_SILENCE_SECONDS: Final = 2.0
_ENDING_SECONDS: Final = 10.0
_ENDING_BYTES: Final = 4 * 1024 * 1024
# Connections beyond the limits that wait for their callers to read the refusal.
_MAX_REFUSED: Final = 256


class AwaitedHead(Protocol):
    """A connection from which a head is awaited."""

    def expire_head(self) -> None:
        """Ends it because no head has arrived in time."""


class Resting(Protocol):
    """A connection between two requests."""

    def expire_rest(self) -> None:
        """Ends it because its caller has sent no other request."""


class EndingConnection(Protocol):
    """A connection whose last response has been sent."""

    ends_at: float

    def expire_ending(self) -> None:
        """Ends it because its caller is silent after the last response."""


class WorkerConnections:
    """The shared state of a worker's connections."""

    _KEY: ClassVar = "causeway.connections"

    @classmethod
    def of(
        cls, state: dict[str, Any], loop: asyncio.AbstractEventLoop, *, keep_alive: float
    ) -> Self:
        """Returns the one of a server, whose state all its connections share."""
        found: Self | None = state.get(cls._KEY)
        if found is None:
            found = state[cls._KEY] = cls(loop, keep_alive=keep_alive)
        return found

    def __init__(self, loop: asyncio.AbstractEventLoop, *, keep_alive: float) -> None:
        """Keeps a connection between two requests for ``keep_alive`` seconds."""
        self._loop = loop
        self.refusals = Refusals()
        self.table = ConnectionTable(
            limit=fitting_connections(settings.MAX_CONNECTIONS),
            limit_per_address=settings.MAX_CONNECTIONS_PER_ADDRESS,
            proxies=Proxies(settings.FORWARDED_ALLOW_IPS),
        )
        self.most_discarded = largest_file_body() + _ENDING_BYTES
        self.heads: DeadlineQueue[AwaitedHead] = DeadlineQueue(
            loop, settings.REQUEST_HEAD_TIMEOUT, lambda connection: connection.expire_head()
        )
        self.resting: DeadlineQueue[Resting] = DeadlineQueue(
            loop, keep_alive, lambda connection: connection.expire_rest()
        )
        self.endings: DeadlineQueue[EndingConnection] = DeadlineQueue(
            loop, _SILENCE_SECONDS, lambda connection: connection.expire_ending()
        )

    def may_refuse_another(self) -> bool:
        """Returns whether one more connection beyond the limits may wait to read its refusal."""
        return len(self.endings) < _MAX_REFUSED

    def start_ending(self, connection: EndingConnection) -> None:
        """Gives a caller time to read its last response."""
        connection.ends_at = self._loop.time() + _ENDING_SECONDS
        self.endings.start(connection)

    def continue_ending(self, connection: EndingConnection) -> None:
        """Gives a caller that still sends more time, up to the end of the whole time."""
        if self._loop.time() < connection.ends_at:
            self.endings.start(connection)
