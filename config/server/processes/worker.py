"""A worker's HTTP server, which leaves its traffic to others before it stops."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import uvicorn

from config.server.connections.acceptor import Acceptor
from config.server.processes.supervisor import RETIRE
from config.server.readiness import readiness

# A terminal sends SIGINT to a supervisor and to its workers, to which the supervisor sends it too.
_ONE_INTERRUPT_SECONDS: Final = 1.0


class WorkerServer(uvicorn.Server):
    """Uvicorn's server, which drains in two steps.

    SIGTERM stops the service: ``/readyz`` answers 503, and the worker still serves new requests for
    ``drain_seconds``, until the proxy in front has noticed it. A worker that another one replaces
    accepts no more connections, but serves those that it has for as long. Then running requests
    end. SIGINT skips the first step; another one, a second later, breaks what still runs.
    """

    def __init__(
        self, config: uvicorn.Config, *, drain_seconds: float, notify: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._notify = notify
        self._exit_at = self._force_from = float("inf")
        self._is_retiring = False
        self._acceptors: list[Acceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        if not self.started:
            return
        for listener in sockets or ():
            listener.listen(self.config.backlog)
            self._acceptors.append(Acceptor(listener, self._make_protocol))
        signal.signal(RETIRE, self._retire)
        self._notify()

    def _make_protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        return make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
            await acceptor.wait_closed()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles SIGTERM and SIGINT; neither is raised again, so that the command ends with 0."""
        now = time.monotonic()
        if sig == signal.SIGINT or not self._drain_seconds:
            readiness.is_draining = self.should_exit = True
            if sig == signal.SIGINT:
                self.force_exit = now >= self._force_from
                self._force_from = min(self._force_from, now + _ONE_INTERRUPT_SECONDS)
        elif not readiness.is_draining:
            readiness.is_draining = True
            self._exit_at = now + self._drain_seconds

    async def on_tick(self, counter: int) -> bool:
        if self._is_retiring:
            for acceptor in self._acceptors:
                acceptor.close()
        if time.monotonic() >= self._exit_at:
            self.should_exit = True
        return await super().on_tick(counter)

    def _retire(self, sig: int, frame: FrameType | None) -> None:
        self._is_retiring = readiness.is_draining = True
        self._exit_at = min(self._exit_at, time.monotonic() + self._drain_seconds)
