"""The parts of a day in which a state that lasts is told once."""

from __future__ import annotations

from datetime import datetime
from typing import Final

_HOURS: Final = 6


def part_of_day(now: datetime) -> str:
    """Names the six hours of a UTC day that a moment belongs to."""
    return f"{now:%Y-%m-%d}.{now.hour // _HOURS}"
