"""Callers that keep asking through a proxy, and the log of what each of them was answered."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final, Self

import aiohttp

from tests.support.machine.waiting import wait_until

_TOTAL: Final = aiohttp.ClientTimeout(total=300)
_PAUSE_SECONDS: Final = 0.1
_WAIT_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Caller:
    """Who asks: a key, a model, and how many words the question has."""

    key: str
    model: str
    words: int = 4
    stream: bool = False


@dataclass
class Sent:
    """A request of the client's log."""

    caller: Caller
    began_at: float
    ended_at: float = 0.0
    status: int = 0
    server: str = ""
    generation_id: str = ""
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    is_done: bool = False
    error: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether the caller got all that it asked for."""
        return (
            self.status == 200
            and self.is_done
            and not self.error
            and self.text.split() == ["You", "said:", *["word"] * self.caller.words]
        )

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


class Load:
    """Keeps each caller asking, from a thread, for the time of a ``with`` block."""

    def __init__(self, address: str, callers: list[Caller]) -> None:
        self.sent: list[Sent] = []
        self._url = f"{address}/api/v1/chat/completions"
        self._callers = callers
        self._is_over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Sends nothing more; returns once every answer has ended."""
        self._is_over = True
        self._thread.join()

    def failed(self) -> list[Sent]:
        """Returns the requests that have ended otherwise than whole."""
        return [each for each in list(self.sent) if each.ended_at and not each.is_whole]

    def servers(self) -> Counter[str]:
        return Counter(each.server for each in list(self.sent) if each.ended_at)

    def wait_for(self, count: int) -> None:
        """Returns once so many requests were sent."""
        wait_until(lambda: len(self.sent) >= count, "too few were sent", seconds=_WAIT_SECONDS)

    def open_streams(self) -> int:
        """Counts the streams of which something has arrived, and not the end."""
        return sum(bool(each.text) and not each.ended_at for each in list(self.sent))

    def open_at(self, server: str) -> int:
        """Counts the streams that a service has begun and not ended."""
        return sum(not each.ended_at and each.server == server for each in list(self.sent))

    def slowest(self, began: float, ended: float) -> float:
        """Returns how long the slowest plain request took that ran at that time, in seconds."""
        return max(
            (
                each.seconds
                for each in list(self.sent)
                if not each.caller.stream and each.began_at < ended and each.ended_at > began
            ),
            default=0.0,
        )

    async def _run(self) -> None:
        # Each request has a connection of its own, as those of many callers have.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=_TOTAL) as session:
            await asyncio.gather(*(self._ask_again(session, each) for each in self._callers))

    async def _ask_again(self, session: aiohttp.ClientSession, caller: Caller) -> None:
        while not self._is_over:
            sent = Sent(caller, time.monotonic())
            self.sent.append(sent)
            try:
                await self._ask(session, sent)
            except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as exc:
                sent.error = sent.error or f"{type(exc).__name__}: {exc}"
            sent.ended_at = time.monotonic()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self, session: aiohttp.ClientSession, sent: Sent) -> None:
        caller = sent.caller
        body = {
            "model": caller.model,
            "messages": [{"role": "user", "content": " ".join(["word"] * caller.words)}],
            "max_tokens": 2_000,
            "stream": caller.stream,
        }
        headers = {"Authorization": f"Bearer {caller.key}"}
        async with session.post(self._url, json=body, headers=headers) as answer:
            sent.status = answer.status
            sent.server = answer.headers.get("X-Server", "")
            sent.generation_id = answer.headers.get("X-Generation-Id", "")
            if answer.status != 200:
                sent.error = await answer.text()
            elif caller.stream:
                async for line in answer.content:
                    _read_line(sent, line)
            else:
                told = await answer.json()
                sent.text = told["choices"][0]["message"]["content"]
                sent.usage = told["usage"]
                sent.is_done = True


def _read_line(sent: Sent, line: bytes) -> None:
    if line.startswith(b"data: [DONE]"):
        sent.is_done = True
    elif line.startswith(b"data: {"):
        event = json.loads(line[6:])
        sent.error = sent.error or str(event.get("error", ""))
        sent.usage = event.get("usage") or sent.usage
        for choice in event.get("choices", ()):
            sent.text += choice["delta"].get("content") or ""
