"""Computes cards, rankings, and the bars of charts, which are SVG without scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

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
    # The same as text: the beginning and the value of each bar.
    rows: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """A number with a link to the list of the counted rows; without ``url`` it has none.

    ``exact`` is what a rounded number is exactly.
    """

    title: str
    value: str
    url: str
    icon: str
    note: str = ""
    is_alarming: bool = False
    exact: str = ""


class RankRow(NamedTuple):
    """A row of a ranking, with the length of its bar and the amount without rounding."""

    name: str
    url: str
    numbers: str
    percent: int
    exact: str


@dataclass(frozen=True, slots=True)
class Top:
    """A ranking of at most five rows; ``empty`` says what to do while it has none."""

    title: str
    rows: Sequence[RankRow]
    empty: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The beginnings of the bars of charts, as they are written."""

    starts: Sequence[str]

    def plot(
        self,
        title: str,
        summary: str,
        values: Sequence[int],
        write: Callable[[int], str],
        *,
        bad: Sequence[int] | None = None,
    ) -> Chart:
        """Returns a chart of one value for each bar; ``bad`` is the share drawn at the foot."""
        texts = [*map(write, values)]
        if bad is not None:
            texts = [f"{text} ({one:,} failed)" for text, one in zip(texts, bad, strict=True)]
        titles = [f"{start}: {text}" for start, text in zip(self.starts, texts, strict=True)]
        bars = draw_bars(values, titles, bad=bad)
        return Chart(
            title,
            summary,
            write(max(values, default=0)),
            self.starts[0],
            self.starts[-1],
            bars,
            is_empty=not bars,
            rows=list(zip(self.starts, texts, strict=True)),
        )


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
