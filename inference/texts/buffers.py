"""The memory that texts take in a worker until they are stored, and the texts that it loses."""

from __future__ import annotations

import logging
import time
from collections import Counter as Counts
from enum import StrEnum
from typing import Final
from uuid import UUID

from prometheus_client import Counter, Gauge

from config.live_settings import settings

logger = logging.getLogger(__name__)

_BUFFERED: Final = Gauge(
    "causeway_buffered_text_bytes",
    "Inputs and outputs of logged generations that are not stored yet.",
    multiprocess_mode="livesum",
)
STORED: Final = Counter("causeway_stored_texts_total", "Inputs and outputs that were stored.")
_DROPPED: Final = Counter(
    "causeway_dropped_texts_total",
    "Inputs and outputs that should have been stored and were not, by the reason.",
    ("reason",),
)
# How often an organization's losses are logged.
_LOG_SECONDS: Final = 60.0


class Loss(StrEnum):
    """Why a text is not stored."""

    BUFFER = "buffer"
    RULES_CHANGED = "rules_changed"
    DELETED = "deleted"
    REFUSED = "refused"
    STOPPED = "stopped"


_MEANINGS: Final = {
    Loss.BUFFER: "too many wait (ORGANIZATION_IO_LOGGING_BYTES, IO_LOGGING_BYTES)",
    Loss.RULES_CHANGED: "its content filters or its data policy changed while it ran",
    Loss.REFUSED: "the database refuses it, or its key cannot be decrypted",
    Loss.STOPPED: "the worker stops and the database does not take it",
}


class TextBuffers:
    """Counts the bytes of texts that wait in this worker, by organization and in all."""

    def __init__(self) -> None:
        self._held: Counts[UUID] = Counts()
        self._total = 0
        self._lost: Counts[tuple[UUID, Loss]] = Counts()
        self._logged_at: dict[UUID, float] = {}

    def reserve(self, organization_id: UUID, size: int) -> bool:
        """Takes this number of bytes if there is room; returns whether there was."""
        if (
            self._total + size > settings.IO_LOGGING_BYTES
            or self._held[organization_id] + size > settings.ORGANIZATION_IO_LOGGING_BYTES
        ):
            return False
        self._held[organization_id] += size
        self._total += size
        _BUFFERED.set(self._total)
        return True

    def release(self, organization_id: UUID, size: int) -> None:
        """Gives bytes back."""
        self._held[organization_id] -= size
        if not self._held[organization_id]:
            del self._held[organization_id]
        self._total -= size
        _BUFFERED.set(self._total)

    def count_loss(self, organization_id: UUID, loss: Loss) -> None:
        """Counts a text that is not stored, and logs it, once a minute for an organization."""
        _DROPPED.labels(loss.value).inc()
        if loss is Loss.DELETED:
            return  # somebody asked for it
        self._lost[organization_id, loss] += 1
        now = time.monotonic()
        if now - self._logged_at.get(organization_id, -_LOG_SECONDS) < _LOG_SECONDS:
            return
        self._logged_at[organization_id] = now
        for each in Loss:
            if lost := self._lost.pop((organization_id, each), 0):
                logger.warning(
                    "%d inputs and outputs of organization %s are not stored: %s",
                    lost,
                    organization_id,
                    _MEANINGS[each],
                )
