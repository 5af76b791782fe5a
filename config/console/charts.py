"""Charts as SVG, drawn on the server: no script, no other host, the theme's own colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 160
_GAP: Final = 0.25


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, in the units of the drawing; ``title`` is what a pointer over it is told."""

    x: float
    y: float
    width: float
    height: float
    title: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A series over time with what stands beside it."""

    title: str
    summary: str
    highest: str
    first: str
    last: str
    bars: Sequence[Bar]
    is_empty: bool


def bars(
    values: Sequence[int], titles: Sequence[str], *, bad: Sequence[int] | None = None
) -> list[Bar]:
    """Returns bars as high as the values, with the bad share of each at its foot."""
    highest = max(values, default=0)
    if not highest:
        return []
    step = WIDTH / len(values)
    drawn = []
    for number, (value, title) in enumerate(zip(values, titles, strict=True)):
        x, width = round(number * step + step * _GAP / 2, 2), round(step * (1 - _GAP), 2)
        height = _height(value, highest)
        drawn.append(Bar(x, round(HEIGHT - height, 2), width, height, title))
        if bad is not None and bad[number]:
            height = _height(bad[number], highest)
            drawn.append(Bar(x, round(HEIGHT - height, 2), width, height, title, is_bad=True))
    return drawn


def _height(value: int, highest: int) -> float:
    """A value that is not zero is seen, however small."""
    return round(max(HEIGHT * value / highest, 1.5), 2) if value else 0.0
