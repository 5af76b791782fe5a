"""Bounds how many passwords a worker hashes at a time, so that sign-ins leave the rest alone.

A hash takes a core for about half a second. Requests that may hash a password wait here, without a
thread and without a connection to the database, until one of two places is free.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from typing import Final

from config.console.sign_in import events
from config.console.sign_in.throttle import network_of
from config.pages.failures import render_page
from config.server.bodies import AsgiApplication, Message, Receive, Scope, Send

logger = logging.getLogger("causeway.sign_in")

_PATHS: Final = re.compile(
    r"/admin/(?:login|password_change|auth/user/add|auth/user/[^/]+/password)/"
)
PLACES: Final = 2
# Requests of one address that send, wait or run, and of all addresses that wait or run.
MAX_OF_ADDRESS: Final = 4
MAX_OF_WORKER: Final = 20
MAX_BYTES: Final = 65_536
_RETRY_SECONDS: Final = 5


class SignInGate:
    """Passes requests on to Django; at most two of a worker hash a password at the same time."""

    def __init__(self, application: AsgiApplication) -> None:
        self._application = application
        self._places = asyncio.Semaphore(PLACES)
        self._present: Counter[str] = Counter()
        self._ready = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not may_hash(scope["method"], scope["path"]):
            await self._application(scope, receive, send)
            return
        address = (scope.get("client") or ("",))[0]
        network = network_of(address)
        if self._present[network] >= MAX_OF_ADDRESS:
            await _refuse(send, 429, address, "Other sign-ins from your address are running.")
            return
        self._present[network] += 1
        try:
            await self._wait(scope, receive, send, address)
        finally:
            self._present[network] -= 1
            if not self._present[network]:
                del self._present[network]

    async def _wait(self, scope: Scope, receive: Receive, send: Send, address: str) -> None:
        """Reads the small body first, because a slow one must keep nobody else waiting."""
        messages: list[Message] = []
        size = 0
        while not messages or messages[-1].get("more_body"):
            messages.append(await receive())
            if messages[-1]["type"] == "http.disconnect":
                return
            size += len(messages[-1].get("body", b""))
            if size > MAX_BYTES:
                await _refuse(send, 413, address, "The form is too large.")
                return
        messages.reverse()

        async def receive_next() -> Message:
            return messages.pop() if messages else await receive()

        if self._ready >= MAX_OF_WORKER:
            await _refuse(send, 503, address, "The worker is busy with other sign-ins.")
            return
        self._ready += 1
        try:
            async with self._places:
                await self._application(scope, receive_next, send)
        finally:
            self._ready -= 1


def may_hash(method: str, path: str) -> bool:
    """Returns whether a request may hash a password."""
    return method == "POST" and _PATHS.fullmatch(path) is not None


async def _refuse(send: Send, status: int, address: str, reason: str) -> None:
    events.count(events.BUSY)
    logger.warning("sign-in: busy, address %s (%s)", ascii(address), reason)
    body = render_page(status, reason)
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"retry-after", str(_RETRY_SECONDS).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
