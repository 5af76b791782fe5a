"""How long callers wait: what they say about it, and comments that keep a quiet stream alive."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from config.api.errors import InvalidRequest
from config.live_settings import settings

# The shortest pause between two comments, whatever a caller says that it bears.
_SHORTEST_INTERVAL: Final = 0.5
# What clients tell about the silence that they bear: those in Python, and those in TypeScript.
_SILENCES: Final = (b"x-stainless-read-timeout", b"x-stainless-timeout")
_SECONDS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


class Patience(NamedTuple):
    """The seconds in all that a caller waits for an answer, and those of silence in a stream."""

    in_all: float | None = None
    silence: float = math.inf

    def count_left(self, since: float) -> float | None:
        """Returns the seconds that are left if the caller has waited since a monotonic time.

        A caller who is watched again has waited before.
        """
        if self.in_all is None:
            return None
        return max(since + self.in_all - time.monotonic(), 0.0)


def read_patience(header: Callable[[bytes], str | None], *, is_stream: bool) -> Patience:
    """Returns what the headers of a request say about the time that its caller waits.

    ``X-Request-Timeout`` is the whole time, of a stream too. Raises :class:`InvalidRequest` for
    what is no number of seconds above 0. What the clients of OpenAI and Anthropic tell about
    themselves is the longest silence that they bear: a plain answer is silent until it comes, and
    a stream is kept alive with comments that come sooner.
    """
    in_all: float | None = None
    silence = math.inf
    if (text := header(b"x-request-timeout")) is not None and not (in_all := _read_seconds(text)):
        raise InvalidRequest(
            "X-Request-Timeout: Must be a number of seconds above 0, such as 120 or 2.5."
        )
    for name in _SILENCES:
        if (told := header(name)) is not None and (seconds := _read_seconds(told)):
            silence = min(silence, seconds)
    if is_stream or silence == math.inf:
        return Patience(in_all, silence)
    return Patience(silence if in_all is None else min(in_all, silence))


def _read_seconds(text: str) -> float:
    return float(text) if _SECONDS.fullmatch(text) else 0.0


async def _send_nothing() -> None:
    """Stands for the stream of a keepalive that has stopped."""


class Keepalive:
    """Sends a comment into one stream each time that it was quiet for a while.

    ``is_busy`` says that the stream is being written: comments would queue behind events that a
    slow caller has not read. ``last_sent`` is the monotonic time at which it was written last.
    """

    __slots__ = ("_most", "_send", "_task", "_timer", "is_busy", "last_sent")

    def __init__(self, send: Callable[[], Awaitable[None]], silence: float) -> None:
        """Begins at once; ``silence`` is what the caller bears, of which half may pass."""
        self._send = send
        self._most = max(silence / 2, _SHORTEST_INTERVAL)
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_busy = False
        self.last_sent = time.monotonic()
        self._look()

    def stop(self) -> None:
        """Sends no further comment, and forgets the stream: it refers to this object, too."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._send = _send_nothing

    def _look(self) -> None:
        """Sends a comment when the stream has been quiet, and schedules the next look."""
        interval = min(settings.STREAM_KEEPALIVE_INTERVAL, self._most)
        if not interval:
            return
        loop = asyncio.get_running_loop()
        left = interval
        if not self.is_busy:
            left = self.last_sent + interval - time.monotonic()
            if left <= 0:
                self._task = loop.create_task(self._send_comment())
                left = interval
        self._timer = loop.call_later(left, self._look)

    async def _send_comment(self) -> None:
        if self._timer is not None:
            await self._send()
