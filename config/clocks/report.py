"""Says when the clock of the host differs from the database's: in the log, metrics and probes."""

from __future__ import annotations

import logging
from typing import Any, Final

from prometheus_client import Gauge

from config.clocks.clock import TOLERATED_SECONDS, clock

logger = logging.getLogger("causeway.clock")

# All processes of a host have the same clock, so the latest value is that of the host.
_OFFSET: Final = Gauge(
    "causeway_clock_offset_seconds",
    "Seconds by which the clock of the host is ahead of the database's.",
    multiprocess_mode="livemostrecent",
)


class ClockReport:
    """Compares the clock of the host with the database's whenever that has been read."""

    def __init__(self) -> None:
        # The offset in the latest line of the log, or 0 if that line says that the clocks agree.
        self._logged = 0.0

    def update(self) -> None:
        """Sets the metric; logs an offset of more than a second when it begins, moves and ends."""
        offset = clock.offset()
        _OFFSET.set(offset)
        if abs(offset) > TOLERATED_SECONDS and abs(offset - self._logged) > TOLERATED_SECONDS:
            self._logged = offset
            logger.warning("%s", _describe(offset))
        elif self._logged and abs(offset) < TOLERATED_SECONDS / 2:
            self._logged = 0.0
            logger.info("the clock of this host agrees with the database's again")

    def describe(self) -> dict[str, Any] | None:
        """Returns the member of a probe's body about the clock; ``None`` while it is right."""
        offset = clock.offset()
        if abs(offset) <= TOLERATED_SECONDS:
            return None
        return {"offset_seconds": round(offset, 3), "message": _describe(offset)}


def _describe(offset: float) -> str:
    side = "ahead of" if offset > 0 else "behind"
    return (
        f"the clock of this host is {abs(offset):.1f} s {side} the database's; the database's "
        "counts. Synchronize the host (NTP): its log has wrong times, and TLS may fail"
    )


clock_report: Final = ClockReport()
