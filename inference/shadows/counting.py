"""Counts in memory what a worker's requests tell, and stores it once a second."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec

from config.api.errors import Unavailable
from config.database.driver import Rejected
from config.server.batching.waits import Blocked
from config.sql import Statement, load_statement
from inference.routing.fairness import JudgedEstimate, TokenSource
from inference.shadow_counts import SLOT_SECONDS
from inference.store import DataPlaneConnection

logger = logging.getLogger(__name__)

COUNT_SHADOWS: Final = load_statement("inference", "count_shadows")
COUNT_GUARDRAILS: Final = load_statement("inference", "count_guardrails")
COUNT_TOKENS: Final = load_statement("inference", "count_tokens")
_SECONDS: Final = 1.0
_HOUR: Final = 3600
# Counts that a worker keeps while the database does not take them.
_MOST: Final = 10_000
# Statements of one round that may meet a lock. One locked row of all counts takes fifteen.
_MOST_BLOCKED: Final = 32
_encode = msgspec.json.Encoder().encode


class Counted(NamedTuple):
    """What the counts are kept by; ``hour`` is its beginning in Unix seconds."""

    shadow_id: UUID
    key_id: UUID
    hour: int
    reason: str


class CountedByGuardrail(NamedTuple):
    """What the counts of a guardrail are kept by; ``slot`` is its beginning in Unix seconds."""

    guardrail_id: UUID
    slot: int
    reason: str


class SummedTokens(NamedTuple):
    """The key of one sum of prompt tokens; :class:`inference.models.TokenSum` stores the sums."""

    endpoint_id: UUID
    script: str
    mark: str
    kind: TokenSource


class WorkerCounts:
    """The counts of a worker that are not stored yet, by the statement that stores them.

    A worker that is killed loses those of its last second.
    """

    def __init__(self) -> None:
        self._connection = DataPlaneConnection()
        self._counts: dict[Statement, Counter[Any]] = {
            COUNT_SHADOWS: Counter(),
            COUNT_GUARDRAILS: Counter(),
            COUNT_TOKENS: Counter(),
        }
        self._task: asyncio.Task[None] | None = None
        self._is_closing = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_storing())

    async def close(self) -> None:
        """Stores what is left."""
        # A statement that runs is not cancelled: its counts would be stored twice.
        self._is_closing.set()
        if self._task is not None:
            await self._task
        with suppress(Unavailable, Rejected, OSError):
            await self.store()
        await self._connection.close()

    def count_verdicts(self, key_id: UUID, at: int, verdicts: Iterable[tuple[UUID, str]]) -> None:
        """Counts the verdicts of shadows about a request that was stored at an instant."""
        hour = at - at % _HOUR
        for shadow_id, reason in verdicts:
            self._add(COUNT_SHADOWS, Counted(shadow_id, key_id, hour, reason))

    def count_judged(self, guardrails: Collection[UUID], at: int, reason: str = "") -> None:
        """Counts a request that guardrails let pass, or that one refused for a reason."""
        slot = at - at % SLOT_SECONDS
        for guardrail_id in guardrails:
            self._add(COUNT_GUARDRAILS, CountedByGuardrail(guardrail_id, slot, reason))

    def count_tokens(self, endpoint_id: UUID, judged: JudgedEstimate) -> None:
        """Adds the tokens of a prompt, as they were estimated and as they were reported."""
        for kind, tokens in judged.tokens.items():
            entry = SummedTokens(endpoint_id, judged.script, judged.mark, kind)
            self._add(COUNT_TOKENS, entry, tokens)

    def _add(
        self,
        statement: Statement,
        entry: Counted | CountedByGuardrail | SummedTokens,
        amount: int = 1,
    ) -> None:
        counts = self._counts[statement]
        if entry in counts or len(counts) < _MOST:
            counts[entry] += amount

    async def store(self) -> None:
        """Adds the counts to the database; keeps them after an error."""
        for statement, counts in self._counts.items():
            if counts:
                await self._store(statement, counts)

    async def _store(self, statement: Statement, counts: Counter[Any]) -> None:
        """Stores counts; puts back what was not stored.

        Counts that meet a lock are divided, so that those of one guardrail hold up no others.
        """
        taken = Counter(counts)
        counts.clear()
        parts, blocked = [list(taken)], 0
        try:
            while parts and blocked < _MOST_BLOCKED:
                part = parts.pop()
                entries = [(*entry, taken[entry]) for entry in part]
                try:
                    await self._connection.execute(statement, [_encode(entries).decode()])
                except Blocked:
                    blocked += 1
                    if len(part) > 1:
                        middle = len(part) // 2
                        parts += part[middle:], part[:middle]
                    continue
                for entry in part:
                    del taken[entry]
        finally:
            counts.update(taken)

    async def _keep_storing(self) -> None:
        while not self._is_closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_closing.wait(), _SECONDS)
            try:
                await self.store()
            except (Unavailable, Rejected, OSError) as exc:
                logger.warning("the counts of guardrails are stored later: %s", exc)
