"""Settlement: stores the outcomes of generations in batches, each outcome once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from catalog.pricing import Usage
from config.api.errors import Unavailable
from config.api.text import NOT_STORABLE
from config.server.batching.lanes import Lane, Lanes
from config.server.batching.waits import Blocked, Suspects
from config.sql import load_statement
from inference.admission.estimate import Claim
from inference.ids import id_range
from inference.store import CommitMemory, Committed, DataPlaneConnection

logger = logging.getLogger(__name__)

SETTLE: Final = load_statement("inference", "settle")

_RETRY_SECONDS: Final = 0.25
_LONGEST_RETRY_SECONDS: Final = 4.0
# How often the log says that settlements wait.
_REMIND_SECONDS: Final = 60.0
# How long a settlement waits for others to share its statement. If the process ends before that,
# the sweeper settles the generation by its journal.
_PAUSE_SECONDS: Final = 0.01
# The least time between two batches of few settlements. The accounts and meters of a busy
# organization then have half as many versions.
_INTERVAL_SECONDS: Final = 0.05
# The most of a count that is stored, so that the sum of two is in the range of a column.
MOST_COUNT: Final = 10**18
# The lengths of the columns of what an upstream says, and that of any other text.
_LENGTHS: Final = {
    "finish_reason": 64, "native_finish_reason": 64, "upstream_id": 255, "upstream_model": 255
}  # fmt: skip
_LENGTH: Final = 255
_encode = msgspec.json.Encoder().encode


class Settlement(msgspec.Struct, frozen=True):
    """The outcome of one generation; a second settlement of the generation changes nothing.

    ``usage`` and the costs are what is believed; ``claim`` is what the upstream reported beyond it.
    """

    generation_id: str
    status: str
    usage: Usage | None = None
    is_estimated: bool = False
    cost_nano: int = 0
    upstream_cost_nano: int = 0
    reported_cost_nano: int | None = None
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    upstream_id: str | None = None
    upstream_model: str | None = None
    error_type: str | None = None
    attempts: list[dict[str, Any]] = msgspec.field(default_factory=list)
    latency_ms: int | None = None
    duration_ms: int | None = None
    claim: Claim | None = None
    cached_from: str | None = None
    retry_of: str | None = None

    def without_upstream_texts(self) -> Settlement:
        """Returns the same settlement without the texts that the upstream chose."""
        return replace(
            self,
            finish_reason=None,
            native_finish_reason=None,
            upstream_id=None,
            upstream_model=None,
            usage=None if self.usage is None else replace(self.usage, image_variant=""),
        )


class SettlementRow(msgspec.Struct, frozen=True):
    """A row of the batch of ``settle.sql``; the fields are its columns, in order."""

    id: str
    status: str
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    cache_write_tokens: int | None
    reasoning_tokens: int | None
    units: dict[str, Any] | None
    is_estimated: bool
    cost_nano: int
    upstream_cost_nano: int
    reported_cost_nano: int | None
    finish_reason: str | None
    native_finish_reason: str | None
    upstream_id: str | None
    upstream_model: str | None
    error_type: str | None
    attempts: list[dict[str, Any]]
    latency_ms: int | None
    duration_ms: int | None
    claimed_prompt_tokens: int | None
    claimed_completion_tokens: int | None
    allowed_prompt_tokens: int | None
    allowed_completion_tokens: int | None
    excess_nano: int
    upstream_excess_nano: int
    cached_from: str | None
    retry_of: str | None


class SettlementStore:
    """Stores batches with one statement, and retries while the database is unavailable.

    A store is not for concurrent use: each lane has its own.
    """

    def __init__(self, memory: CommitMemory | None = None, *, is_apart: bool = False) -> None:
        self._connection = DataPlaneConnection(is_apart=is_apart)
        self._memory = memory or CommitMemory()

    async def close(self) -> None:
        await self._connection.close()

    async def store(
        self, batch: list[Settlement], organizations: Collection[UUID] = ()
    ) -> Sequence[Blocked | None]:
        """Stores every settlement of the batch; returns when they are durable.

        A settlement that PostgreSQL rejects, for instance because its cost is out of range, is
        logged and left to the sweeper. It does not keep the others from being stored.
        :class:`Blocked` stands for a settlement that is not stored because of a lock.
        """
        try:
            await self._execute(batch, organizations)
        except Blocked as exc:
            return [exc] * len(batch)
        except Exception:
            return [await self._store_alone(item, organizations) for item in batch]
        return [None] * len(batch)

    async def _store_alone(
        self, item: Settlement, organizations: Collection[UUID]
    ) -> Blocked | None:
        """Stores one settlement; drops the upstream's texts if it cannot be stored with them."""
        problem: Exception | None = None
        for candidate in (item, item.without_upstream_texts()):
            try:
                await self._execute([candidate], organizations)
            except Blocked as exc:
                return exc
            except Exception as exc:
                problem = exc
            else:
                return None
        logger.error("the generation %s cannot be settled", item.generation_id, exc_info=problem)
        return None

    async def _execute(self, batch: list[Settlement], organizations: Collection[UUID]) -> None:
        parameters = settlement_parameters(batch)
        pause = _RETRY_SECONDS
        logged_at = -_REMIND_SECONDS
        while True:
            try:
                await self._connection.execute(SETTLE, parameters, organizations)
            except Blocked:
                raise
            except Unavailable:
                if time.monotonic() >= logged_at + _REMIND_SECONDS:
                    logged_at = time.monotonic()
                    logger.error("the database is unavailable: %d settlements wait", len(batch))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_RETRY_SECONDS)
            else:
                self._memory.note((time.monotonic(), Committed.SETTLED, parameters[0]))
                return


def open_lanes(suspects: Suspects, memory: CommitMemory) -> Lanes[Settlement, None]:
    """Opens the lanes in which a worker settles; a settlement that a lock stops waits for ever."""

    def open_lane(is_apart: bool) -> Lane[Settlement, None]:
        store = SettlementStore(memory, is_apart=is_apart)
        return Lane(store.store, store.close)

    return Lanes("settle", open_lane, suspects, pause=_PAUSE_SECONDS, interval=_INTERVAL_SECONDS)


def settlement_parameters(batch: Sequence[Settlement]) -> list[str]:
    """Returns the parameters of :data:`SETTLE`."""
    rows = _encode([_make_row(item) for item in batch]).decode()
    return [rows, *id_range([item.generation_id for item in batch])]


def _make_row(item: Settlement) -> SettlementRow:
    usage, claim = item.usage, item.claim
    texts: dict[str, Any] = {name: getattr(item, name) for name in _LENGTHS}
    counts: dict[str, Any] = {
        "prompt_tokens": None if usage is None else usage.prompt,
        "completion_tokens": None if usage is None else usage.completion,
        "cached_tokens": None if usage is None else usage.cached,
        "cache_write_tokens": None if usage is None else usage.cache_write,
        "reasoning_tokens": None if usage is None else usage.reasoning,
        "claimed_prompt_tokens": None if claim is None else claim.prompt,
        "claimed_completion_tokens": None if claim is None else claim.completion,
        "allowed_prompt_tokens": None if claim is None else claim.allowed_prompt,
        "allowed_completion_tokens": None if claim is None else claim.allowed_completion,
    }
    units = None if usage is None else usage.units
    attempts = [{**each} for each in item.attempts]
    for members in (texts, counts, units or {}, *attempts):
        for name, value in members.items():
            if isinstance(value, int):
                members[name] = min(max(value, 0), MOST_COUNT)
            elif isinstance(value, str):
                # One that PostgreSQL cannot store would end its generation without a charge.
                members[name] = NOT_STORABLE.sub("", value)[: _LENGTHS.get(name, _LENGTH)]
    return SettlementRow(
        id=item.generation_id,
        status=item.status,
        **counts,
        units=units,
        is_estimated=item.is_estimated,
        cost_nano=item.cost_nano,
        upstream_cost_nano=item.upstream_cost_nano,
        reported_cost_nano=item.reported_cost_nano,
        **texts,
        error_type=item.error_type,
        attempts=attempts,
        latency_ms=item.latency_ms,
        duration_ms=item.duration_ms,
        excess_nano=0 if claim is None else claim.excess_nano,
        upstream_excess_nano=0 if claim is None else claim.upstream_excess_nano,
        cached_from=item.cached_from,
        retry_of=item.retry_of,
    )
