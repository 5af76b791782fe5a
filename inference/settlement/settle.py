"""The second island: what every generation came to, stored once, for a whole batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from billing import ledger
from catalog.pricing import Usage
from config.api.errors import Unavailable
from inference.store import DataPlaneConnection

logger = logging.getLogger(__name__)

# A generation ends once: whoever comes second, a worker that was given up for dead for instance,
# changes nothing. The ledger's part is in the same statement.
SETTLE: Final = f"""
WITH v AS (
    SELECT * FROM json_to_recordset(%s::json) AS v(
        id text, status text, prompt_tokens bigint, completion_tokens bigint,
        cached_tokens bigint, cache_write_tokens bigint, reasoning_tokens bigint,
        is_estimated bool, cost_nano bigint, upstream_cost_nano bigint, finish_reason text,
        native_finish_reason text, upstream_id text, upstream_model text, error_type text,
        attempts jsonb, latency_ms int, duration_ms int
    )
),
settled AS (
    UPDATE inference_generation g
    SET status = v.status, prompt_tokens = v.prompt_tokens,
        completion_tokens = v.completion_tokens, cached_tokens = v.cached_tokens,
        cache_write_tokens = v.cache_write_tokens, reasoning_tokens = v.reasoning_tokens,
        is_estimated = v.is_estimated, cost_nano = v.cost_nano,
        upstream_cost_nano = v.upstream_cost_nano, finish_reason = v.finish_reason,
        native_finish_reason = v.native_finish_reason, upstream_id = v.upstream_id,
        upstream_model = v.upstream_model, error_type = v.error_type, attempts = v.attempts,
        latency_ms = v.latency_ms, duration_ms = v.duration_ms
    FROM v WHERE g.id = v.id AND g.id = ANY(ARRAY(SELECT id FROM v)) AND g.status = 'pending'
    RETURNING g.id, g.organization_id, g.hold_nano, g.upstream_hold_nano, g.cost_nano,
        CASE WHEN g.is_byok THEN g.upstream_cost_nano ELSE 0 END AS byok_cost_nano,
        array_remove(ARRAY[g.api_key_id, g.workspace_id, g.member_id], NULL) AS subjects
),
ended AS MATERIALIZED (
    SELECT id AS reference, organization_id, subjects, hold_nano,
           upstream_hold_nano AS byok_hold_nano, cost_nano, byok_cost_nano
    FROM settled
),
{ledger.END},
unjournaled AS (
    DELETE FROM inference_journal WHERE generation_id = ANY(ARRAY(SELECT id FROM settled))
)
SELECT id FROM settled
"""

_RETRY_SECONDS: Final = 0.25
_LONGEST_RETRY_SECONDS: Final = 4.0
_encode = msgspec.json.Encoder().encode


class Settlement(msgspec.Struct, frozen=True):
    """The end of one generation; a second one for the same generation changes nothing."""

    generation_id: str
    status: str
    usage: Usage | None = None
    is_estimated: bool = False
    cost_nano: int = 0
    upstream_cost_nano: int = 0
    finish_reason: str | None = None
    native_finish_reason: str | None = None
    upstream_id: str | None = None
    upstream_model: str | None = None
    error_type: str | None = None
    attempts: list[dict[str, Any]] = msgspec.field(default_factory=list)
    latency_ms: int | None = None
    duration_ms: int | None = None

    def without_foreign_texts(self) -> Settlement:
        """Returns the same end with nothing in it but our own words and numbers."""
        return replace(
            self,
            finish_reason=None,
            native_finish_reason=None,
            upstream_id=None,
            upstream_model=None,
        )


class SettlementStore:
    """Settles batches with one statement, and keeps trying while the database is away."""

    def __init__(self) -> None:
        self._connection = DataPlaneConnection()

    async def close(self) -> None:
        await self._connection.close()

    async def store(self, batch: list[Settlement]) -> Sequence[None]:
        """Stores every settlement of the batch; returns when they are durable.

        What PostgreSQL does not take, a cost beyond all range for instance, is logged and left to
        the sweeper; it keeps none of the others from being stored.
        """
        try:
            await self._put(batch)
        except Exception:
            for item in batch:
                await self._put_alone(item)
        return [None] * len(batch)

    async def _put_alone(self, item: Settlement) -> None:
        """Stores one settlement; where that fails by what an upstream said, stores it without.

        Twice as it is: PostgreSQL checks a row's constraints before it sees that its statement has
        locked a newer one, where a payment may have come meanwhile.
        """
        problem: Exception | None = None
        for wanted in (item, item, item.without_foreign_texts()):
            try:
                await self._put([wanted])
            except Exception as exc:
                problem = exc
            else:
                return
        logger.error("the generation %s cannot be settled", item.generation_id, exc_info=problem)

    async def _put(self, batch: list[Settlement]) -> None:
        rows = encoded(batch)
        pause = _RETRY_SECONDS
        while True:
            try:
                await self._connection.execute(SETTLE, [rows])
            except Unavailable:
                logger.error("%d settlements wait for the database", len(batch))
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_RETRY_SECONDS)
            else:
                return


def encoded(batch: Sequence[Settlement]) -> str:
    """Returns the parameter of :data:`SETTLE`."""
    return _encode([_row(item) for item in batch]).decode()


def _row(item: Settlement) -> dict[str, Any]:
    usage = item.usage
    return {
        "id": item.generation_id,
        "status": item.status,
        "prompt_tokens": None if usage is None else usage.prompt,
        "completion_tokens": None if usage is None else usage.completion,
        "cached_tokens": None if usage is None else usage.cached,
        "cache_write_tokens": None if usage is None else usage.cache_write,
        "reasoning_tokens": None if usage is None else usage.reasoning,
        "is_estimated": item.is_estimated,
        "cost_nano": item.cost_nano,
        "upstream_cost_nano": item.upstream_cost_nano,
        "finish_reason": _bounded(item.finish_reason, 64),
        "native_finish_reason": _bounded(item.native_finish_reason, 64),
        "upstream_id": _bounded(item.upstream_id, 255),
        "upstream_model": _bounded(item.upstream_model, 255),
        "error_type": item.error_type,
        "attempts": item.attempts,
        "latency_ms": item.latency_ms,
        "duration_ms": item.duration_ms,
    }


def _bounded(text: str | None, length: int) -> str | None:
    """Cuts foreign text to its column, without what PostgreSQL cannot store."""
    return None if text is None else text.replace("\0", "")[:length]
