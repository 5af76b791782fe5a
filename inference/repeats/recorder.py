"""Records a response while it is sent, and goes on when its caller has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from django.conf import settings

from config.api.errors import GatewayError
from config.server.bodies import Message, Send
from config.server.bulkheads import Occupancy
from inference.repeats.answers import KeptResponse

# Headers that belong to the body; the others belong to one response.
KEPT_HEADERS: Final = frozenset((b"content-type", b"cache-control", b"x-left-out"))
# How long a caller may leave a part of the answer unread before the work goes on without it.
_STUCK_SECONDS: Final = 30.0


class Copy:
    """A copy of a body, of bounded size, whose bytes are counted as the organization's."""

    def __init__(self, occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._parts: list[bytes] | None = []
        self._size = 0

    def add(self, part: Any) -> None:
        """Copies a part; from the first one that is too much, there is no copy."""
        if self._parts is None:
            return
        self._size += len(part)
        try:
            if self._size > settings.KEPT_ANSWER_BYTES:
                self._parts = None
            else:
                self._occupancy.reserve(len(part))
                self._parts.append(bytes(part))
        except GatewayError:
            self._parts = None

    def whole(self) -> bytes | None:
        """Returns the body, after which there are no parts; ``None`` if it was too large."""
        parts, self._parts = self._parts, None
        return None if parts is None else b"".join(parts)


class Recorder:
    """Sends the messages of ASGI of one response, and copies them.

    A caller who does not read is cut off, so that the answer is whole for the next request.
    ``comments`` are those of a quiet stream, which are not copied.
    """

    _send: Send
    _abort: Callable[[], None]

    def __init__(self, occupancy: Occupancy, comments: frozenset[bytes]) -> None:
        self._comments = comments
        self._copy = Copy(occupancy)
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._is_alone = False

    def attach(self, send: Send, abort: Callable[[], None]) -> Send:
        """Records what is sent to a connection from now on; ``abort`` closes it."""
        self._send, self._abort = send, abort
        return self

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            pairs = message["headers"]
            self._headers = [pair for pair in pairs if pair[0] in KEPT_HEADERS]
        elif (body := message.get("body")) and body not in self._comments:
            self._copy.add(body)
        if self._is_alone:
            return
        try:
            async with asyncio.timeout(_STUCK_SECONDS):
                await self._send(message)
        except TimeoutError:
            self._is_alone = True
            self._abort()

    def answer(self) -> KeptResponse | None:
        """Returns what was sent, if a response has begun and was not too large."""
        body = self._copy.whole()
        if self._headers is None or body is None:
            return None
        return KeptResponse(memoryview(body), self._headers, streamed=True)
