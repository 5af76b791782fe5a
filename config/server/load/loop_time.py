"""Shares the event loop between organizations: one with busy streams leaves time to the others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final
from uuid import UUID

from prometheus_client import Counter

logger = logging.getLogger(__name__)

# In each window, the answers of one organization may take this part of the loop while others have
# requests. So the others wait for half a window at most, and get the other half of the loop.
_WINDOW_SECONDS: Final = 0.02
_SHARE: Final = 0.5
_SHARE_SECONDS: Final = _WINDOW_SECONDS * _SHARE
# What a byte of an upstream costs before it is parsed: decryption, about 1 ms a MiB.
_SECONDS_PER_BYTE: Final = 1e-9
_LOG_SECONDS: Final = 60.0
_THROTTLED: Final = Counter(
    "causeway_throttled_seconds_total",
    "Seconds for which the answers of an organization waited so that others are served.",
    ("reason",),
)
_LOOP_TIME: Final = _THROTTLED.labels("loop_time")


class LoopTime:
    """Counts the time that each organization's answers take of the loop in the present window."""

    def __init__(
        self, is_shared: Callable[[], bool], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Starts the first window; ``is_shared`` tells whether several organizations are active."""
        self._is_shared = is_shared
        # Returns the time at which a step begins, for :meth:`count`.
        self.now = clock
        self._end = clock() + _WINDOW_SECONDS
        self._used: dict[UUID | None, float] = {}
        self._logged_at = -_LOG_SECONDS

    def count(self, organization_id: UUID | None, began: float, size: int = 0) -> None:
        """Counts a step that ends now; ``size`` is the number of bytes received for it."""
        now = self.now()
        if now >= self._end:
            self._used.clear()
            self._end = now + _WINDOW_SECONDS
        used = self._used.get(organization_id, 0.0)
        self._used[organization_id] = used + now - began + size * _SECONDS_PER_BYTE

    def must_wait(self, organization_id: UUID | None) -> bool:
        """Returns whether the organization has used up its share, and others need the loop."""
        used = self._used.get(organization_id)
        return (
            used is not None and used >= _SHARE_SECONDS and bool(self._find_wait(organization_id))
        )

    async def wait_turn(self, organization_id: UUID | None) -> None:
        """Waits until the organization may use the loop again; usually returns at once."""
        while seconds := self._find_wait(organization_id):
            _LOOP_TIME.inc(seconds)
            now = self.now()
            if now - self._logged_at >= _LOG_SECONDS:
                self._logged_at = now
                logger.warning(
                    "organization %s takes more than %d %% of the event loop: its answers wait",
                    organization_id,
                    round(_SHARE * 100),
                )
            await asyncio.sleep(seconds)

    def _find_wait(self, organization_id: UUID | None) -> float:
        """Returns the seconds until the end of the window; 0 if the organization need not wait."""
        if self._used.get(organization_id, 0.0) < _SHARE_SECONDS:
            return 0.0
        left = self._end - self.now()
        return left if left > 0 and self._is_shared() else 0.0
