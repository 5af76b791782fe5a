"""Reads the presets that requests name, by batches.

Each request reads its preset from PostgreSQL, so a change applies to the next request in every
worker. A request without a preset costs nothing here.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from config.server.batching.batcher import Batcher
from config.sql import load_statement
from inference.requests.operations.presets import AppliedPreset
from inference.store import DataPlaneConnection

FIND_PRESETS: Final = load_statement("inference", "find_presets")
# No slug that is longer, or has such a character, was ever stored.
_MAX_SLUG: Final = 64


class PresetReader:
    """Finds presets by the key of the caller and their slug; it has a connection of its own."""

    def __init__(self) -> None:
        self._connection = DataPlaneConnection()
        self._lookups: Batcher[tuple[UUID, str], AppliedPreset | None] = Batcher(self._read)

    async def close(self) -> None:
        await self._connection.close()

    async def find(self, key_id: UUID, slug: str) -> AppliedPreset | None:
        """Returns a preset of the key's workspace; ``None`` without one of this slug."""
        if len(slug) > _MAX_SLUG or not slug.isascii() or not slug.isprintable():
            return None
        return await self._lookups.submit((key_id, slug))

    async def _read(self, batch: list[tuple[UUID, str]]) -> list[AppliedPreset | None]:
        wanted = list(dict.fromkeys(batch))
        rows = await self._connection.execute(
            FIND_PRESETS, [[key_id for key_id, _ in wanted], [slug for _, slug in wanted]]
        )
        found = {(row[0], row[1]): AppliedPreset(*row[2:]) for row in rows}
        return [found.get(item) for item in batch]
