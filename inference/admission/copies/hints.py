"""Hears that versions have changed, so that copies are current before a request needs them.

A notification is only a hint. Whether it comes, comes late or gets lost changes nothing but the
time at which a copy is read again: each admission compares the versions itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from secrets import token_hex
from typing import Any, Final, NoReturn
from uuid import UUID

from accounts.models import Organization
from config.api.errors import Unavailable
from config.database.driver import Rejected
from config.database.opening import open_connection
from config.server.batching.waits import Blocked
from config.sql import load_statement
from inference import metrics
from inference.admission.copies.snapshots import Snapshots
from inference.store import DataPlaneConnection

logger = logging.getLogger(__name__)

CHANNEL: Final = "causeway_versions"
SEND_ECHO: Final = load_statement("inference", "send_echo")
# How often a listener makes sure that it still hears, and how long it waits for its own echo.
_ECHO_SECONDS: Final = 30.0
_ECHO_WAIT_SECONDS: Final = 5.0
# How often the version of the catalogue is read while nothing is heard, and how many times before
# the worker listens again.
_POLL_SECONDS: Final = 1.0
_POLLS: Final = 60
# An organization that changes all the time makes no worker load its copy more often than this.
_ORGANIZATION_SECONDS: Final = 1.0


FAILURES: Final = (OSError, TimeoutError, Unavailable, Rejected)


class VersionHints:
    """Listens for changes of versions, and refreshes a worker's copies of what has changed.

    A pooler that shares connections by transaction passes no notification on, and other middlemen
    may lose them. An echo from another connection finds that out; the version of the catalogue is
    then polled.
    """

    def __init__(self, snapshots: Snapshots) -> None:
        self.is_listening = False
        self._snapshots = snapshots
        self._sender = DataPlaneConnection()
        self._echo = ""
        self._is_heard = asyncio.Event()
        self._is_lost = asyncio.Event()
        self._has_catalog = asyncio.Event()
        self._has_organizations = asyncio.Event()
        self._organizations: set[UUID] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._has_catalog.set()
        runs = (self._listen, self._follow_catalog, self._follow_organizations)
        self._tasks = [asyncio.create_task(_run_always(run)) for run in runs]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._sender.close()

    async def _listen(self) -> NoReturn:
        """Listens for as long as notifications arrive, and polls while they do not."""
        while True:
            try:
                await self._listen_once()
            except FAILURES as exc:
                self._report_lost(exc)
                # A connection that was lost is opened again at once; a pooler stays.
                polls = _POLLS if isinstance(exc, TimeoutError) else 1
            for _ in range(polls):
                self._has_catalog.set()
                await asyncio.sleep(_POLL_SECONDS)

    async def _listen_once(self) -> NoReturn:
        """Listens on a connection until it is lost; raises :class:`TimeoutError` without echo."""
        connection = await open_connection()
        self._is_lost.clear()
        try:
            await connection.listen(CHANNEL, self._hear, self._is_lost.set)
            while not self._is_lost.is_set():
                await self._send_echo()
                if not self.is_listening:
                    self.is_listening = True
                    logger.info("changes of versions are heard")
                    # What changed before the worker listened was not heard.
                    self._has_catalog.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_ECHO_SECONDS):
                        await self._is_lost.wait()
            raise ConnectionError("the connection was lost")
        finally:
            connection.terminate()

    async def _send_echo(self) -> None:
        """Waits for an own notification, which another connection sends."""
        self._is_heard.clear()
        self._echo = token_hex(8)
        try:
            await self._sender.execute(SEND_ECHO, [self._echo])
        finally:
            await self._sender.close()
        async with asyncio.timeout(_ECHO_WAIT_SECONDS):
            await self._is_heard.wait()

    def _hear(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        """Records the subject of a notification: the catalogue, an organization, or an echo."""
        text = str(payload)
        if text == self._echo:
            self._is_heard.set()
        elif text == "catalog":
            metrics.count_hint("catalog")
            self._has_catalog.set()
        else:
            with suppress(ValueError):
                organization_id = UUID(text)
                if self._snapshots.remembers(organization_id):
                    metrics.count_hint("organization")
                    self._organizations.add(organization_id)
                    self._has_organizations.set()

    def _report_lost(self, error: Exception) -> None:
        metrics.count_hint("lost")
        if isinstance(error, TimeoutError):
            logger.warning(
                "notifications do not arrive, perhaps because of a pooler: the version of the "
                "catalogue is read every %d s",
                _POLL_SECONDS,
            )
        elif self.is_listening:
            logger.warning("changes of versions are not heard any more: %s", error)
        self.is_listening = False

    async def _follow_catalog(self) -> NoReturn:
        """Patches the copy of the catalogue after each hint; hints meanwhile count as one."""
        while True:
            await self._has_catalog.wait()
            self._has_catalog.clear()
            # A database that is away is reported by the heartbeat, and the next hint tries again.
            with suppress(Unavailable, Blocked, Rejected):
                await self._snapshots.refresh_catalog()

    async def _follow_organizations(self) -> NoReturn:
        """Loads the copies of changed organizations that the worker serves, one after another."""
        while True:
            await self._has_organizations.wait()
            self._has_organizations.clear()
            organizations, self._organizations = self._organizations, set()
            for organization_id in organizations:
                # An organization may have been deleted since its change.
                with suppress(Unavailable, Organization.DoesNotExist):
                    await self._snapshots.reload(organization_id)
            await asyncio.sleep(_ORGANIZATION_SECONDS)


async def _run_always(run: Callable[[], Awaitable[NoReturn]]) -> NoReturn:
    """Runs a task of the worker, and again after an error that it does not expect."""
    while True:
        try:
            await run()
        except Exception:
            logger.exception("a change of versions was not followed; the next one will be")
            await asyncio.sleep(_POLL_SECONDS)
