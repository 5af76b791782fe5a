"""A price: its rates without conditions, its discount and its rules; immutable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import msgspec

from catalog.pricing.rates import COMPLETION_PLACES, EXACT, RateTable
from catalog.pricing.rules import (
    CITATION,
    COLUMNS,
    KIND_OF,
    KINDS,
    RESEARCH,
    SEARCHED,
    UNASKED,
    Billable,
    Rule,
)
from catalog.pricing.usage import Usage

ZERO: Final = Decimal(0)
ONE: Final = Decimal(1)
NOTHING: Final = Usage(0, 0)
# The columns of a price, in order; a price has a field for each.
RATES: Final = (
    "prompt", "completion", "image", "request", "cache_read", "cache_write", "image_output",
)  # fmt: skip
_COMPLETIONS: Final = frozenset(KINDS[place].name for place in COMPLETION_PLACES)
# The smallest step of a stored rate.
_FINEST: Final = Decimal("1e-30")


class UnknownRule(ValueError):
    """A stored price has a rule that this release does not know, so it cannot be applied."""


@dataclass(frozen=True, slots=True)
class Price:
    """USD per prompt token, completion token, image of the prompt and request, and further rules.

    ``cache_read`` and ``cache_write`` are the rates of prompt tokens that the provider read from or
    wrote to its cache; ``image_output`` is the rate of completion tokens of an image. ``None``
    means the rate of other tokens. ``discount`` is the share that is taken off every rate.
    ``rules`` are the rates of all other kinds, and those with conditions.
    """

    prompt: Decimal
    completion: Decimal
    image: Decimal = ZERO
    request: Decimal = ZERO
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    image_output: Decimal | None = None
    discount: Decimal = ZERO
    rules: tuple[Rule, ...] = ()
    _table: RateTable | None = field(default=None, init=False, repr=False, compare=False)
    _unasked: Usage | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of_row(cls, *values: Any) -> Price:
        """Returns the price of a row: its rates in order, its discount and its lines.

        Raises :class:`UnknownRule` for lines that a later release has stored.
        """
        *rates, discount, lines = values
        named: dict[str, Any] = dict(zip(RATES, rates, strict=True))
        return cls(**named, discount=discount, rules=load_rules(lines))

    @property
    def base(self) -> dict[tuple[Billable, str], Decimal]:
        """The rates without conditions by kind, before the discount."""
        rates = {
            kind.name: amount
            for column, kind in COLUMNS.items()
            if (amount := getattr(self, column)) is not None
        }
        return rates | {rule.name: rule.price for rule in self.rules if rule.conditions is None}

    @property
    def table(self) -> RateTable:
        """The rates under every combination of the conditions."""
        table = self._table
        if table is None:
            conditional = [rule for rule in self.rules if rule.conditions is not None]
            table = RateTable(self.base, conditional, EXACT.subtract(ONE, self.discount))
            object.__setattr__(self, "_table", table)
        return table

    @property
    def is_free(self) -> bool:
        """Returns whether every part of a request is free."""
        if self.discount == 1:
            return True
        return not (
            self.prompt or self.completion or self.image or self.request or self.image_output
            or self.cache_read or self.cache_write or any(rule.price for rule in self.rules)
        )  # fmt: skip

    def has_rate(self, billable: Billable, variant: str = "") -> bool:
        """Returns whether the price names a rate for a kind, free or not."""
        if (kind := KIND_OF.get((billable, variant))) is not None and kind.column:
            return getattr(self, kind.column) is not None
        return any(rule.name == (billable, variant) for rule in self.rules)

    @property
    def has_search_rate(self) -> bool:
        """Returns whether the price names a rate for a search, or for a request that searched."""
        return any(self.has_rate(*name) for name in ((Billable.SEARCH, ""), SEARCHED, UNASKED))

    @property
    def unasked(self) -> Usage:
        """The most of what the model does by itself, whatever it is asked; mostly nothing."""
        if not self.rules:
            return NOTHING
        unasked = self._unasked
        if unasked is None:
            most = dict.fromkeys((UNASKED, CITATION, RESEARCH), 0)
            for rule in self.rules:
                if rule.most:
                    most[rule.name] = max(most[rule.name], rule.most)
            searches, citations, research = most.values()
            unasked = Usage(0, 0, searches=searches, citations=citations, research=research)
            unasked = unasked if any(most.values()) else NOTHING
            object.__setattr__(self, "_unasked", unasked)
        return unasked

    @property
    def bills_images(self) -> bool:
        """Returns whether the images of an answer have a rate each, beside their tokens."""
        return any(
            rule.billable is Billable.IMAGE and rule.variant != "input" and rule.price
            for rule in self.rules
        )

    @property
    def bills_completions(self) -> bool:
        """Returns whether a token of an answer, of any kind or under any conditions, is billed."""
        return bool(self.completion or self.image_output) or any(
            rule.price and rule.name in _COMPLETIONS for rule in self.rules
        )

    def net(self, name: str) -> Decimal:
        """Returns one rate after the discount; 0 for a rate that is not set."""
        amount: Decimal = getattr(self, name) or ZERO
        if not self.discount:
            return amount
        return EXACT.multiply(amount, EXACT.subtract(ONE, self.discount))

    def highest(self, billable: Billable, variant: str, prompt_tokens: int) -> Decimal:
        """Returns the highest rate of a kind for a prompt of at most ``prompt_tokens``, in USD."""
        return self.table.find_highest((billable, variant), prompt_tokens)

    def text(self, name: str) -> str:
        """Returns one rate as plain decimal digits: no exponent, no trailing zeros."""
        return decimal_text(getattr(self, name) or ZERO)


def load_rules(lines: str | Sequence[Any]) -> tuple[Rule, ...]:
    """Returns the rules of a stored price; raises :class:`UnknownRule`."""
    if not lines or lines == "[]":
        return ()
    try:
        if isinstance(lines, str):
            return msgspec.json.decode(lines, type=tuple[Rule, ...])
        return msgspec.convert(lines, tuple[Rule, ...])
    except msgspec.ValidationError as exc:
        raise UnknownRule(str(exc)) from None


def dump_rules(rules: Sequence[Rule]) -> list[dict[str, Any]]:
    """Returns rules as a price version stores them."""
    dumped: list[dict[str, Any]] = []
    for rule in rules:
        row = msgspec.to_builtins(rule)
        dumped.append({**row, "price": decimal_text(rule.price)})
    return dumped


def decimal_text(value: Decimal) -> str:
    """Returns plain decimal digits: ``0.0000005``, not ``5E-7``; ``1.5`` for ``1.50``."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def scale_rate(rate: Decimal, *, base: Decimal, new_base: Decimal) -> Decimal:
    """Returns ``rate * new_base / base``, rounded to the smallest step of a stored rate."""
    exact = EXACT.divide(EXACT.multiply(rate, new_base), base)
    return exact.quantize(_FINEST, "ROUND_HALF_EVEN", EXACT)
