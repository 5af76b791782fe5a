"""Compares the rows of two catalogue files column by column; pure.

Rates of overrides and lines are columns of their own, such as ``pricing.prompt above 200000``, so
that a rise of one rate is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_UP, Context, Decimal
from typing import Any, Final, NamedTuple

from catalog.sync.plans.wording import RATES, describe_column, describe_value, find_limit
from config.console.formatting import write_difference

_CONDITIONS: Final = ("min_prompt_tokens", "utc_start", "utc_end", "utc_days")
# The rate that applies where a rate is not stated.
_OTHERWISE: Final = {
    "input_cache_read": "prompt",
    "input_cache_write": "prompt",
    "input_cache_write_1h": "prompt",
    "audio": "prompt",
    "input_audio_cache": "prompt",
    "internal_reasoning": "completion",
    "audio_output": "completion",
    "image_token": "completion",
}
# The share that is taken off every rate: what it leaves of them is compared.
_DISCOUNT: Final = f"{RATES}discount"
_FALL: Final = -90
# A rate that is ten times as high has risen by 900 percent.
_LEAP: Final = 900
_HUNDRED: Final = 100
_TENTH: Final = Decimal("0.1")
# From the lowest rate to the highest, a rise has forty digits.
_EXACT: Final = Context(prec=80)
# Why to look twice before a change is applied.
VANISHES: Final = "vanishes"
UNPRICED: Final = "has no price"
_WAS_FREE: Final = "was free"
_BECOMES_FREE: Final = "becomes free"
_DEARER: Final = "10 times the price or more"
_CHEAPER: Final = "a tenth of the price or less"
RISKS: Final = (VANISHES, UNPRICED, _WAS_FREE, _BECOMES_FREE, _DEARER, _CHEAPER)


class Change(NamedTuple):
    """The old and the new value of one column, as texts; ``None`` where there is none.

    ``percent`` is the rise of a rate, with its sign; ``None`` for other columns, and for a rate
    that was 0. That of a discount is the rise of what it leaves of every rate. Where a rate is not
    stated, the one that applies instead counts: without a rate for cached tokens, they cost what
    the others do. ``values`` are those of a list or an object, of
    which people see the entries that change if it is long.
    """

    column: str
    old: str | None
    new: str | None
    percent: Decimal | None = None
    values: tuple[Any, Any] = (None, None)

    def __str__(self) -> str:
        effect = f" ({self.effect})" if self.effect else ""
        label, before, after = self._difference
        return f"{label}: {before} → {after}{effect}"

    @property
    def is_rate(self) -> bool:
        return self.column.startswith(RATES)

    @property
    def label(self) -> str:
        return self._difference[0]

    @property
    def before(self) -> str:
        return self._difference[1]

    @property
    def after(self) -> str:
        return self._difference[2]

    @property
    def _difference(self) -> tuple[str, str, str]:
        texts = describe_value(self.column, self.old), describe_value(self.column, self.new)
        longest = find_limit(self.column)
        return write_difference(describe_column(self.column), texts, self.values, longest=longest)

    @property
    def effect(self) -> str:
        """The rise of a rate in percent, with its sign; empty for other columns."""
        return "" if self.percent is None else f"{self.percent:+,f} %"

    @property
    def risk(self) -> str:
        """The reason to look twice before the change is applied; empty for an ordinary change."""
        if not self.is_rate:
            return VANISHES if (self.column, self.new) == ("is_listed", "no") else ""
        if self.percent is None:
            return _WAS_FREE if _worth(self.column, self.new) > 0 else ""
        if self.percent == -_HUNDRED:
            return _BECOMES_FREE
        if self.percent >= _LEAP:
            return _DEARER
        return _CHEAPER if self.percent <= _FALL else ""

    @property
    def members(self) -> dict[str, Any]:
        """The change as programs read it."""
        percent = None if self.percent is None else format(self.percent, "f")
        return {"column": self.column, "old": self.old, "new": self.new, "percent": percent}

    def rises_above(self, limit: Decimal) -> bool:
        """Returns whether a rate rises by more than ``limit`` percent."""
        if not self.is_rate:
            return False
        return _worth(self.column, self.new) > 0 if self.percent is None else self.percent > limit

    @property
    def falls_far(self) -> bool:
        """Returns whether a rate falls to a tenth or less."""
        return self.is_rate and self.percent is not None and self.percent <= _FALL


def find_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Returns the columns of two rows that differ, in the order of the new row."""
    before, after = dict(_flatten(old)), dict(_flatten(new))
    return [
        _make_change(column, before, after)
        for column in dict.fromkeys((*after, *before))
        if _is_different(column, before.get(column), after.get(column))
    ]


def read_changes(stored: Iterable[Mapping[str, Any]]) -> list[Change]:
    """Returns the changes that :attr:`Change.members` state."""
    return [
        Change(
            each["column"],
            each["old"],
            each["new"],
            None if each["percent"] is None else Decimal(each["percent"]),
        )
        for each in stored
    ]


def _make_change(
    column: str, before: Mapping[str, str | None], after: Mapping[str, str | None]
) -> Change:
    old, new = before.get(column), after.get(column)
    if not column.startswith(RATES):
        return Change(column, old, new)
    start = _worth(column, _applied(column, before))
    end = _worth(column, _applied(column, after))
    if not start:
        return Change(column, old, new)
    # Rounded away from zero: what is above a limit stays above it.
    percent = ((end - start) * _HUNDRED / start).quantize(_TENTH, ROUND_UP, _EXACT).normalize()
    return Change(column, old, new, percent + 0)


def _applied(column: str, row: Mapping[str, str | None]) -> str | None:
    """Returns the rate that applies for a column: its own, that of its base, or the other one's."""
    found = row.get(column)
    if found is not None:
        return found
    base, _, condition = column.partition(" ")
    if condition:
        return _applied(base, row)
    otherwise = _OTHERWISE.get(base.removeprefix(RATES))
    return None if otherwise is None else _applied(f"{RATES}{otherwise}", row)


def _is_different(column: str, old: str | None, new: str | None) -> bool:
    """Returns whether two values differ.

    A rate that is 0 equals one that is not stated, unless another one applies in its place.
    """
    if column == _DISCOUNT:
        return _number(old) != _number(new)
    base, _, condition = column.partition(" ")
    nothing = (None,) if condition or base.removeprefix(RATES) in _OTHERWISE else (None, "0")
    return old != new and not (old in nothing and new in nothing)


def _worth(column: str, text: str | None) -> Decimal:
    """Returns what a rate costs, or the share of every rate that a discount leaves."""
    return 1 - _number(text) if column == _DISCOUNT else _number(text)


def _number(text: str | None) -> Decimal:
    try:
        return Decimal(text or 0)
    except ArithmeticError:
        return Decimal(0)


def _flatten(row: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for name, value in row.items():
        if name == "pricing" and isinstance(value, Mapping):
            yield from _flatten_pricing(value)
        elif name == "lines":
            for line in value or ():
                words = [line["billable"], line.get("variant") or "", *_conditions(line)]
                name = " ".join(filter(None, words))
                yield f"{RATES}{name}", line["price"]
                if line.get("most") is not None:
                    yield f"most_units_of {name}", str(line["most"])
        else:
            yield name, None if value is None else str(value)


def _flatten_pricing(pricing: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for name, value in pricing.items():
        if name != "overrides":
            yield f"{RATES}{name}", None if value is None else str(value)
            continue
        for override in value or ():
            condition = " ".join(_conditions(override))
            for key, rate in override.items():
                if key not in _CONDITIONS and rate is not None:
                    yield f"{RATES}{key} {condition}", str(rate)


def _conditions(rule: Mapping[str, Any]) -> list[str]:
    limits = {**rule, **(rule.get("conditions") or {})}
    words = []
    if limits.get("min_prompt_tokens") is not None:
        words.append(f"above {limits['min_prompt_tokens']}")
    if limits.get("utc_start") is not None:
        words.append(f"from {limits['utc_start']:04d} to {limits['utc_end']:04d} UTC")
    if limits.get("utc_days"):
        words.append(f"on {', '.join(limits['utc_days'])}")
    return words
