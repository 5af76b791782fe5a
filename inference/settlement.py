"""The second island: what every generation came to, stored once, for a whole batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import psycopg

from catalog.pricing import Usage
from config.errors import Unavailable
from inference.store import Store

logger = logging.getLogger(__name__)

# The sweeper's verdict is a presumption: a worker that was only slow still tells the truth.
_SETTLE: Final = """
UPDATE inference_generation g
SET status = v.status, prompt_tokens = v.prompt_tokens, completion_tokens = v.completion_tokens,
    cached_tokens = v.cached_tokens, reasoning_tokens = v.reasoning_tokens,
    is_estimated = v.is_estimated, cost_nano = v.cost_nano,
    upstream_cost_nano = v.upstream_cost_nano, finish_reason = v.finish_reason,
    upstream_id = v.upstream_id, upstream_model = v.upstream_model, error_type = v.error_type,
    attempts = v.attempts, latency_ms = v.latency_ms, duration_ms = v.duration_ms
FROM unnest(
    %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bool[],
    %s::bigint[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[], %s::jsonb[],
    %s::int[], %s::int[]
) AS v(
    id, status, prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, is_estimated,
    cost_nano, upstream_cost_nano, finish_reason, upstream_id, upstream_model, error_type, attempts,
    latency_ms, duration_ms
)
WHERE g.id = v.id AND (g.status = 'pending' OR g.error_type = 'abandoned')
"""

_RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of one generation; a second one for the same generation changes nothing."""

    generation_id: str
    status: str
    usage: Usage | None = None
    is_estimated: bool = False
    cost_nano: int = 0
    upstream_cost_nano: int = 0
    finish_reason: str | None = None
    upstream_id: str | None = None
    upstream_model: str | None = None
    error_type: str | None = None
    attempts: list[dict[str, Any]] = field(default_factory=list)
    latency_ms: int | None = None
    duration_ms: int | None = None


class SettlementIsland:
    """Settles batches with one statement, and keeps trying while the database is away."""

    def __init__(self) -> None:
        self._store = Store()

    async def close(self) -> None:
        await self._store.close()

    async def settle(self, batch: list[Settlement]) -> Sequence[None]:
        """Stores every settlement of the batch; returns when they are durable.

        What PostgreSQL cannot hold, a cost beyond all range for instance, is logged and left to
        the sweeper; it keeps none of the others from being stored.
        """
        try:
            await self._put(batch)
        except psycopg.DataError:
            for item in batch:
                try:
                    await self._put([item])
                except psycopg.DataError:
                    logger.exception("the generation %s cannot be settled", item.generation_id)
        return [None] * len(batch)

    async def _put(self, batch: list[Settlement]) -> None:
        columns = [list(column) for column in zip(*map(_row, batch), strict=True)]
        while True:
            try:
                await self._store.execute(_SETTLE, columns)
            except Unavailable:
                logger.error("%d settlements wait for the database", len(batch))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return


def _row(item: Settlement) -> tuple[Any, ...]:
    usage = item.usage
    return (
        item.generation_id,
        item.status,
        None if usage is None else usage.prompt,
        None if usage is None else usage.completion,
        None if usage is None else usage.cached,
        None if usage is None else usage.reasoning,
        item.is_estimated,
        item.cost_nano,
        item.upstream_cost_nano,
        _bounded(item.finish_reason, 64),
        _bounded(item.upstream_id, 255),
        _bounded(item.upstream_model, 255),
        item.error_type,
        msgspec.json.encode(item.attempts).decode(),
        item.latency_ms,
        item.duration_ms,
    )


def _bounded(text: str | None, length: int) -> str | None:
    """Cuts foreign text to its column, without what PostgreSQL cannot store."""
    return None if text is None else text.replace("\0", "")[:length]
