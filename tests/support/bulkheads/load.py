"""Requests of several callers, one after another for each, while a test does something else."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from types import TracebackType
from typing import Any, Final, Self

import requests

from tests.support.inference.site import CHAT, Site
from tests.support.machine.waiting import wait_until

_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Sent:
    """A request: its caller's key, when it began and ended (``time.monotonic()``), its status.

    ``usage`` is that of the answer, if there is one.
    """

    key: str
    began_at: float
    ended_at: float
    status: int
    usage: dict[str, Any] | None


class Load:
    """Keeps every caller asking, each in a thread of its own, for the time of a ``with`` block.

    ``sent`` has all requests that were answered. ``pause`` is how many seconds a caller waits
    before its next one. A caller asks ``hosts`` in turn, or the site alone.
    """

    def __init__(
        self, site: Site, keys: list[str], *, pause: float = 0, hosts: Sequence[str] = ()
    ) -> None:
        self.sent: list[Sent] = []
        self._pause = pause
        self._hosts = hosts or (site.server,)
        self._body = site.chat_body()
        self._keys = keys
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._is_over.clear()
        self._threads = [
            threading.Thread(target=self._ask, args=(key,), daemon=True) for key in self._keys
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(_SECONDS)

    def statuses(self, key: str | None = None) -> Counter[int]:
        """Counts the answers of one caller, or of all, by status."""
        return Counter(each.status for each in self.sent if key in (None, each.key))

    def wait_for_answers(self, count: int) -> None:
        """Returns once each caller has had so many answers to requests that began after this."""
        began_at = time.monotonic()

        def is_answered() -> bool:
            found = Counter(each.key for each in list(self.sent) if each.began_at >= began_at)
            return all(found[key] >= count for key in self._keys)

        wait_until(is_answered, "not all callers are answered", seconds=_SECONDS)

    def wait_for(self, count: int) -> None:
        """Returns once there are so many answers."""
        wait_until(lambda: len(self.sent) >= count)

    def _ask(self, key: str) -> None:
        hosts = cycle(self._hosts)
        with requests.Session() as session:
            while not self._is_over.is_set():
                began_at = time.monotonic()
                answer = session.post(
                    f"{next(hosts)}{CHAT}",
                    json=self._body,
                    headers={"Authorization": f"Bearer {key}"},
                    timeout=_SECONDS,
                )
                ended_at, status = time.monotonic(), answer.status_code
                usage = answer.json().get("usage") if answer.ok else None
                self.sent.append(Sent(key, began_at, ended_at, status, usage))
                self._is_over.wait(self._pause)
