"""Spans of time, each of which has a partition of its own; pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final


@dataclass(frozen=True, slots=True)
class Span:
    """A number of calendar months that divides a year; all times are UTC."""

    months: int

    def begin(self, moment: datetime) -> datetime:
        """Returns the beginning of the span of a moment."""
        month = moment.astimezone(UTC)
        return _first_of(month.year, (month.month - 1) // self.months * self.months)

    def following(self, begin: datetime) -> datetime:
        """Returns the end of the span that begins at ``begin``: the beginning of the next one."""
        return _first_of(begin.year, begin.month - 1 + self.months)


def _first_of(year: int, months: int) -> datetime:
    """Returns the midnight of a month's first day; ``months`` counts from the year's January."""
    return datetime(year + months // 12, months % 12 + 1, 1, tzinfo=UTC)


MONTH: Final = Span(1)
QUARTER: Final = Span(3)
YEAR: Final = Span(12)
