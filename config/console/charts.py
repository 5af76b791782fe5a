"""Computes the bars of charts, which the server draws as SVG without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 600
HEIGHT: Final = 160
_GAP: Final = 0.25


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar in units of the drawing; ``title`` is its tooltip."""

    x: float
    y: float
    width: float
    height: float
    title: str
    is_bad: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A series of bars with its title, sum, maximum and ends of the time axis."""

    title: str
    summary: str
    highest: str
    first: str
    last: str
    bars: Sequence[Bar]
    is_empty: bool


def draw_bars(
    values: Sequence[int], titles: Sequence[str], *, bad: Sequence[int] | None = None
) -> list[Bar]:
    """Returns one bar for each value, with its bad share drawn at the foot."""
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
    """Returns the height of a bar; a value above zero is always visible."""
    return round(max(HEIGHT * value / highest, 1.5), 2) if value else 0.0
