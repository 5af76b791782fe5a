"""Uses of idempotency keys: which request has one, and what has become of it.

All of it is decided by PostgreSQL, so it holds in every worker and after the end of one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC
from typing import Final
from uuid import UUID

import msgspec
from django.conf import settings

from billing.budgets import MeterReading
from billing.rate_limits import Rate, RateRule
from config.api.errors import Conflict, Unavailable
from config.database.driver import Rejected
from config.sql import load_statement
from inference.admission.budgets import UNLIMITED, Readings
from inference.repeats.connections import SharedConnections
from inference.store import DataPlaneConnection

BEGIN: Final = load_statement("inference", "begin_key_use")
END: Final = load_statement("inference", "end_key_use")
FREE: Final = load_statement("inference", "free_key_use")
READ: Final = load_statement("inference", "read_key_uses")
COUNT: Final = load_statement("inference", "count_repeat")

# A request that is not admitted within this time gives up, before its key is free for another one.
ADMITTED_SECONDS: Final = 30.0
_LEASE_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1
_LONGEST_POLL_SECONDS: Final = 1.0
# How often a use is asked for that other statements begin and end at the same moments.
_TRIES: Final = 20


class RequestRuns(Conflict):
    """The first request with the key still runs, and nothing of it can be given."""

    error_type = "idempotent_request_running"


class AnswerNotKept(Conflict):
    """The first request with the key has ended, and its answer is not kept."""

    error_type = "idempotent_answer_not_kept"


class KeyUse(msgspec.Struct, frozen=True):
    """The use of a key by the request with this generation.

    ``state`` is ``begun`` for the request that asked; for another one it is ``running``,
    ``answered`` with an answer that is kept, ``over`` without one, or ``different`` if that request
    had another fingerprint. ``is_kept`` says that the workspace keeps answers. ``answer_id`` is the
    row of a kept answer, and ``size`` what it takes.
    """

    generation_id: str
    is_kept: bool
    state: str
    answer_id: int | None
    size: int

    def refusal(self) -> Conflict:
        """Returns the error for a request whose key has this use."""
        kind: type[Conflict] = RequestRuns if self.state == "running" else AnswerNotKept
        how = "still runs" if self.state == "running" else "has ended, and its answer is not kept"
        return kind(
            f"The first request with this Idempotency-Key {how}: see /generation?id="
            f"{self.generation_id}. To send the request again, use another key. A workspace with "
            "is_answer_storage_enabled gives the answer again.",
            metadata={"generation_id": self.generation_id},
            headers={"X-Generation-Id": self.generation_id, "x-should-retry": "false"},
        )


class KeyUses:
    """Begins and ends uses of keys, and waits for those of other requests."""

    def __init__(self) -> None:
        self._connections = SharedConnections("key_uses")
        # Those who wait for the end of a generation in this worker.
        self._waited: dict[str, asyncio.Future[None]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._polling_connection = DataPlaneConnection()

    async def close(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
        await self._polling_connection.close()
        await self._connections.close()

    def show_figures(self) -> None:
        """Sets the gauge of the queue of statements."""
        self._connections.show_figures()

    async def begin(
        self,
        organization_id: UUID,
        key_id: UUID,
        route: str,
        key: str,
        fingerprint: bytes,
        generation_id: str,
    ) -> KeyUse:
        """Begins a use of a key for a generation, or returns the use that another one has.

        The lifetime is for a use that nobody ends: it covers the longest request.
        """
        lifetime = float(settings.HOLD_TIMEOUT + settings.IDEMPOTENCY_TTL)
        values = (key_id, route, key, fingerprint, generation_id, lifetime, _LEASE_SECONDS)
        for _ in range(_TRIES):
            rows = await self._connections.execute(organization_id, BEGIN, values)
            if rows:
                return KeyUse(*rows[0])
        raise Unavailable

    async def end(self, organization_id: UUID, generation_id: str) -> None:
        """Ends a use whose request has ended; its key is remembered for its lifetime."""
        values = (generation_id, float(settings.IDEMPOTENCY_TTL))
        await self._connections.execute(organization_id, END, values)
        self._wake(generation_id)

    async def free(self, organization_id: UUID, generation_id: str) -> None:
        """Frees the key of a request that was refused, or failed without a charge."""
        await self._connections.execute(organization_id, FREE, (generation_id,))
        self._wake(generation_id)

    async def count(
        self, organization_id: UUID, rules: Sequence[RateRule]
    ) -> tuple[bool, Readings]:
        """Counts a repeated request for the rate limits, in all their meters or in none.

        Returns whether there was room for it, and the meters.
        """
        limits = [
            [rule.limits.get(rate, UNLIMITED) for rule in rules]
            for rate in (Rate.REQUESTS_PER_MINUTE, Rate.REQUESTS_PER_DAY)
        ]
        values = ([rule.subject_id for rule in rules], *limits)
        rows = await self._connections.execute(organization_id, COUNT, values)
        readings = Readings({}, {})
        for _, read_at, *columns in rows:
            readings.add(MeterReading(*columns), read_at.astimezone(UTC))
        is_whole = readings.readings.keys() >= {rule.subject_id for rule in rules}
        return is_whole and all(row[0] for row in rows), readings

    async def wait(self, generation_id: str) -> None:
        """Waits until the request of a generation does not run any more."""
        ended = self._waited.get(generation_id)
        if ended is None:
            ended = self._waited[generation_id] = asyncio.get_running_loop().create_future()
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().create_task(self._poll())
        await asyncio.shield(ended)

    async def _poll(self) -> None:
        """Asks for all generations that are waited for, with one statement each time."""
        pause = _POLL_SECONDS
        while self._waited:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_POLL_SECONDS)
            asked = list(self._waited)
            try:
                rows = await self._polling_connection.execute(READ, (asked, _LEASE_SECONDS))
            except (Unavailable, Rejected):
                continue
            running = {generation_id for (generation_id,) in rows}
            for generation_id in asked:
                if generation_id not in running:
                    self._wake(generation_id)

    def _wake(self, generation_id: str) -> None:
        ended = self._waited.pop(generation_id, None)
        if ended is not None:
            ended.set_result(None)


def may_still_be_admitted(since: float) -> bool:
    """Returns whether a request may be admitted whose use of a key began at this monotonic time.

    Until then no other request can begin a use of the key.
    """
    return time.monotonic() - since < ADMITTED_SECONDS
