"""The pulse of what is under way, so that a killed process leaves nothing unbilled for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import psycopg

from config.errors import Unavailable
from inference.store import Store

logger = logging.getLogger(__name__)

# Once a second: what a process delivers in that time is what its death may leave unbilled.
_INTERVAL_SECONDS: Final = 1.0
_JOURNAL: Final = """
INSERT INTO inference_journal (generation_id, prompt_tokens, completion_tokens, beat_at)
SELECT g.id, v.prompt_tokens, v.completion_tokens, now()
FROM json_to_recordset(%s::json) AS v(
    generation_id text, prompt_tokens bigint, completion_tokens bigint
)
JOIN inference_generation g ON g.id = v.generation_id AND g.status = 'pending'
ON CONFLICT (generation_id) DO UPDATE
SET completion_tokens = EXCLUDED.completion_tokens, beat_at = EXCLUDED.beat_at
"""
_encode = msgspec.json.Encoder().encode


class Beat(msgspec.Struct, frozen=True):
    """How far one generation has come: tokens as estimated, the completion's as delivered."""

    generation_id: str
    prompt_tokens: int
    completion_tokens: int


class Journalist:
    """Writes the beats of a worker, all of them in one statement."""

    def __init__(self, beats: Callable[[], Sequence[Beat]]) -> None:
        self._beats = beats
        self._store = Store()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._store.close()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            if not (beats := self._beats()):
                continue
            try:
                await self._store.execute(_JOURNAL, [_encode(beats).decode()])
            except (Unavailable, psycopg.Error) as exc:
                # The next beat says all that this one would have said.
                name = type(exc).__name__
                logger.error("%d generations are not journalled: %s", len(beats), name)
