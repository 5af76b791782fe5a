"""Callers that log every request, and the comparison of their log with the ledger.

Each request has a session of its own, so that the generation of a request is found even if its
caller never heard of it.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Self

import aiohttp
from django.db.models import Count

from billing.models import Account, Transfer
from inference.models import Generation, Journal
from tests.support.inference.site import CHAT
from tests.support.machine.waiting import wait_until

_NANO: Final = 10**9
_DEADLINE_SECONDS: Final = 240.0
# A caller that was refused comes back after what Retry-After says, but soon enough to notice when
# the service is back.
_LONGEST_WAIT: Final = 2.0

WHOLE, REFUSED, BROKEN, OTHER = "whole", "refused", "broken", "other"


@dataclass
class Asked:
    """A request and what its caller got."""

    session: str
    is_stream: bool
    began_at: float
    opened_at: float = 0.0
    ended_at: float = 0.0
    status: int = 0
    retry_after: str = ""
    cost_nano: int = -1
    text: str = ""
    is_whole: bool = False
    error: str = ""

    @property
    def outcome(self) -> str:
        """``whole``; ``refused`` with 503 and Retry-After; ``broken`` after 200; or ``other``."""
        if self.is_whole:
            return WHOLE
        if self.status == 503 and self.retry_after and self.error:
            return REFUSED
        return BROKEN if self.status == 200 else OTHER

    def was_open_at(self, moment: float) -> bool:
        return bool(self.opened_at) and self.opened_at < moment < (self.ended_at or moment + 1)


@dataclass
class Findings:
    """What the ledger says about the requests of a log; the lists are empty if all is well."""

    outcomes: Counter[str] = field(default_factory=Counter)
    # Whole answers without a completed generation, or with one of another cost.
    lost: list[str] = field(default_factory=list)
    charged_twice: list[str] = field(default_factory=list)
    # Charges of requests whose callers were refused.
    refused_and_charged: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    open_holds: int = 0
    open_journals: int = 0
    difference_nano: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether every request is accounted for."""
        wrong = (self.lost, self.charged_twice, self.refused_and_charged, self.other)
        return not any(wrong) and not (
            self.open_holds or self.open_journals or self.difference_nano
        )


class Callers:
    """Keeps requests going, from a thread, for the time of a ``with`` block.

    ``streams`` callers stream, beginning within ``spread`` seconds; ``plain`` callers ask for whole
    answers every ``pause`` seconds.
    """

    def __init__(
        self,
        servers: list[str],
        key: str,
        *,
        streams: int,
        plain: int,
        stream_body: dict[str, Any],
        plain_body: dict[str, Any],
        pause: float = 0.5,
        spread: float = 0.0,
    ) -> None:
        self.log: list[Asked] = []
        self._servers = servers
        self._headers = {"Authorization": f"Bearer {key}"}
        self._streams, self._plain, self._pause = streams, plain, pause
        self._spread = spread
        self._bodies = {True: {**stream_body, "stream": True}, False: plain_body}
        self._is_over = False
        self.problem: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join(_DEADLINE_SECONDS + 60)
        assert not self._thread.is_alive()
        assert self.problem is None, repr(self.problem)

    def open_streams(self) -> list[Asked]:
        now = time.monotonic()
        return [each for each in list(self.log) if each.is_stream and each.was_open_at(now)]

    def wait_for_open_streams(self, count: int, seconds: float = 60) -> None:
        def are_open() -> bool:
            assert self.problem is None, repr(self.problem)
            return len(self.open_streams()) >= count

        wait_until(are_open, "too few streams are open", seconds=seconds)

    def first_success_after(self, moment: float) -> float | None:
        """Returns when the first answer came that began after a moment or was waiting then."""
        found = [each.opened_at for each in list(self.log) if each.opened_at >= moment]
        return min(found, default=None)

    def longest_pause(self, moment: float) -> float:
        """Returns the most seconds without an answer or a new stream since a moment."""
        opened = [each.opened_at for each in list(self.log) if each.opened_at]
        before = max((each for each in opened if each < moment), default=moment)
        times = sorted([before, *(each for each in opened if each >= moment)])
        return max(b - a for a, b in pairwise(times))

    def wait_for_success(self, moment: float, seconds: float = 60) -> float:
        """Returns how many seconds after a moment the first answer came."""

        def has_succeeded() -> bool:
            assert self.problem is None, repr(self.problem)
            return self.first_success_after(moment) is not None

        wait_until(has_succeeded, "no request succeeds again", seconds=seconds)
        found = self.first_success_after(moment)
        assert found is not None
        return found - moment

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as exc:
            self.problem = exc
            raise

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_DEADLINE_SECONDS)
        # A connection for each request, so that a proxy spreads them.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, headers=self._headers
        ) as session:
            numbers = range(self._streams + self._plain)
            await asyncio.gather(
                *(self._ask_again(session, number, number < self._streams) for number in numbers)
            )

    async def _ask_again(
        self, session: aiohttp.ClientSession, number: int, is_stream: bool
    ) -> None:
        # Streams begin one after another, so that they end so too.
        if is_stream:
            await asyncio.sleep(self._spread * number / self._streams)
        while not self._is_over:
            asked = Asked(uuid.uuid4().hex, is_stream, time.monotonic())
            self.log.append(asked)
            server = self._servers[len(self.log) % len(self._servers)]
            try:
                await self._ask(session, server, asked)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as exc:
                asked.error = asked.error or f"{type(exc).__name__}: {exc}"
            asked.ended_at = time.monotonic()
            wait = self._pause
            if not asked.is_whole:
                told = float(asked.retry_after) if asked.retry_after.isdecimal() else 0.5
                wait = min(max(told, 0.5), _LONGEST_WAIT)
            if not self._is_over:
                await asyncio.sleep(wait)

    async def _ask(self, session: aiohttp.ClientSession, server: str, asked: Asked) -> None:
        body = {**self._bodies[asked.is_stream], "session_id": asked.session}
        async with session.post(f"{server}{CHAT}", json=body) as response:
            asked.status = response.status
            asked.retry_after = response.headers.get("Retry-After", "")
            if response.status != 200:
                asked.error = json.dumps((await response.json())["error"])
            elif asked.is_stream:
                asked.opened_at = time.monotonic()
                await _read_stream(response, asked)
            else:
                answer = json.loads(await response.read())
                asked.opened_at = time.monotonic()
                asked.text = answer["choices"][0]["message"]["content"]
                asked.cost_nano = _read_cost(answer["usage"])
                asked.is_whole = True


async def _read_stream(response: aiohttp.ClientResponse, asked: Asked) -> None:
    async for line in response.content:
        if line.startswith(b"data: [DONE]"):
            asked.is_whole = asked.cost_nano >= 0 and not asked.error
        elif line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                asked.error = json.dumps(event["error"])
            for choice in event.get("choices", ()):
                asked.text += choice["delta"].get("content") or ""
            if event.get("usage"):
                asked.cost_nano = _read_cost(event["usage"])


def _read_cost(usage: dict[str, Any]) -> int:
    return int(Decimal(str(usage["cost"])) * _NANO)


def examine(log: list[Asked], organization: Any) -> Findings:
    """Compares a log with the ledger, after everything has been settled or swept."""
    found = Findings(open_holds=Transfer.objects.pending().count())
    found.open_journals = Journal.objects.count()
    rows: dict[str, list[Generation]] = {}
    for row in Generation.objects.filter(organization=organization):
        rows.setdefault(row.session_id or "", []).append(row)
    for asked in log:
        found.outcomes[asked.outcome] += 1
        own = rows.pop(asked.session, [])
        charged = [row for row in own if row.cost_nano]
        if len(charged) > 1:
            found.charged_twice.append(asked.session)
        if asked.outcome == WHOLE:
            _examine_whole(asked, own, found)
        elif asked.outcome == REFUSED:
            found.refused_and_charged += [_describe(asked, row) for row in charged]
        else:
            found.other.append(f"{asked} {[_describe(asked, row) for row in own]}")
    found.other += [f"nobody asked for {session}" for session in rows]
    charges = Transfer.objects.filter(kind="usage", status="posted").values("reference")
    twice = charges.annotate(times=Count("pk")).filter(times__gt=1)
    found.charged_twice += list(twice.values_list("reference", flat=True))
    account = Account.objects.get(organization=organization, kind="credits")
    spent = sum(Generation.objects.values_list("cost_nano", flat=True))
    found.difference_nano = account.posted_debits - spent
    return found


def _examine_whole(asked: Asked, rows: list[Generation], found: Findings) -> None:
    completed = [row for row in rows if row.status == "completed"]
    if len(completed) != 1 or len(rows) != 1:
        stored = [_describe(asked, row) for row in rows]
        found.lost.append(f"{asked.session}: {stored or 'no generation'}")
    elif completed[0].cost_nano != asked.cost_nano or completed[0].is_estimated:
        found.lost.append(_describe(asked, completed[0]))


def _describe(asked: Asked, row: Generation) -> str:
    return (
        f"{row.pk} {row.status} {row.error_type or ''} costs {row.cost_nano}, "
        f"told {asked.cost_nano}"
    )
