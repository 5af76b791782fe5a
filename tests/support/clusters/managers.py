"""Callers of the control plane, who write too, and a probe of the hosts' readiness."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import Final, Self

import requests

_PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Managed:
    """A request to the control plane: when it began, what it was, its answer and its time."""

    began_at: float
    name: str
    status: int
    retry_after: str
    text: str
    seconds: float


class _Repeating:
    """Does something again and again from a thread, for the time of a ``with`` block."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._problem: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(120)
        assert self._problem is None, repr(self._problem)

    def _run(self) -> None:
        try:
            while not self._is_over.wait(_PAUSE_SECONDS):
                self.turn()
        except BaseException as exc:
            self._problem = exc
            raise

    def turn(self) -> None:
        raise NotImplementedError


class Managers(_Repeating):
    """Lists keys and creates one, on each host in turn."""

    def __init__(self, servers: list[str], key: str) -> None:
        super().__init__()
        self.log: list[Managed] = []
        self._servers = servers
        self._headers = {"Authorization": f"Bearer {key}"}

    def turn(self) -> None:
        server = self._servers[len(self.log) // 2 % len(self._servers)]
        for method, body in (("GET", None), ("POST", {"name": "written during a fault"})):
            began = time.monotonic()
            response = requests.request(
                method, f"{server}/api/v1/keys", json=body, headers=self._headers, timeout=60
            )
            told = response.headers.get("Retry-After", "")
            seconds, text = time.monotonic() - began, response.text[:300]
            self.log.append(Managed(began, method, response.status_code, told, text, seconds))

    def count_since(self, begin: int) -> dict[str, int]:
        found = Counter(f"{each.name} {each.status}" for each in self.log[begin:])
        return dict(sorted(found.items()))

    def succeeded_after(self, moment: float) -> bool:
        """Returns whether something was read and something was written on either host."""
        return {"GET", "POST"} <= {
            each.name
            for each in list(self.log)
            if each.began_at > moment and each.status in (200, 201)
        }

    def problems(self) -> list[str]:
        """Returns what was neither an answer nor a refusal with ``Retry-After``."""
        return [
            str(each)
            for each in self.log
            if each.status not in (200, 201) and not (each.status == 503 and each.retry_after)
        ]


class Readiness(_Repeating):
    """Asks ``/readyz`` of each host."""

    def __init__(self, servers: list[str]) -> None:
        super().__init__()
        self._servers = servers
        self._statuses: list[int] = []

    @property
    def is_down(self) -> bool:
        return self._statuses == [503] * len(self._servers)

    @property
    def is_up(self) -> bool:
        return self._statuses == [200] * len(self._servers)

    def turn(self) -> None:
        urls = [f"{server}/readyz" for server in self._servers]
        self._statuses = [requests.get(url, timeout=60).status_code for url in urls]
