"""A price: its rates without conditions, its discount and its rules; immutable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cached_property
from typing import Any, Final, NamedTuple

import msgspec

from catalog.pricing.rates import (
    BESIDE_COMPLETION,
    BESIDE_PROMPT,
    COMPLETION_PLACES,
    EXACT,
    IMAGE,
    PROMPT_PLACES,
    SEARCH_PLACES,
    SECOND,
    RateTable,
    find_quantities,
)
from catalog.pricing.rules import (
    CITATION,
    COLUMNS,
    KIND_OF,
    KINDS,
    RESEARCH,
    SEARCHED,
    UNASKED,
    Billable,
    RateKind,
    Rule,
)
from catalog.pricing.usage import Usage
from config.api.text import plain_digits

ZERO: Final = Decimal(0)
ONE: Final = Decimal(1)
NOTHING: Final = Usage(0, 0)
# The columns of a price, in order; a price has a field for each.
RATES: Final = (
    "prompt", "completion", "image", "request", "cache_read", "cache_write", "image_output",
)  # fmt: skip
_COMPLETIONS: Final = frozenset(KINDS[place].name for place in COMPLETION_PLACES)
_PROMPTS: Final = frozenset(KINDS[place].name for place in PROMPT_PLACES)
# The smallest step of a stored rate.
_FINEST: Final = Decimal("1e-30")

NANO: Final = 1_000_000_000
# No request costs more than a million USD. A tenant states the price of an own model, and its
# server the usage: without an end, one amount would not fit its column, nor their sum.
MOST_NANO: Final = 1_000_000 * NANO
_NANO_DIGITS: Final = 9
_PROMPT: Final = PROMPT_PLACES | BESIDE_PROMPT
_COMPLETION: Final = COMPLETION_PLACES | BESIDE_COMPLETION


class UnknownRule(ValueError):
    """A stored price has a rule that this release does not know, so it cannot be applied."""


@dataclass(frozen=True)
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

    @cached_property
    def table(self) -> RateTable:
        """The rates under every combination of the conditions."""
        conditional = [rule for rule in self.rules if rule.conditions is not None]
        return RateTable(self.base, conditional, EXACT.subtract(ONE, self.discount))

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

    @cached_property
    def unasked(self) -> Usage:
        """The most of what the model does by itself, whatever it is asked; mostly nothing."""
        most = dict.fromkeys((UNASKED, CITATION, RESEARCH), 0)
        for rule in self.rules:
            if rule.most:
                most[rule.name] = max(most[rule.name], rule.most)
        if not any(most.values()):
            return NOTHING
        searches, citations, research = most.values()
        return Usage(0, 0, searches=searches, citations=citations, research=research)

    @property
    def bills_images(self) -> bool:
        """Returns whether the images of an answer have a rate each, beside their tokens."""
        return any(
            rule.billable is Billable.IMAGE and rule.variant != "input" and rule.price
            for rule in self.rules
        )

    @cached_property
    def bills_completions(self) -> bool:
        """Returns whether a token of an answer, of any kind or under any conditions, is billed."""
        return bool(self.completion or self.image_output) or any(
            rule.price and rule.name in _COMPLETIONS for rule in self.rules
        )

    @cached_property
    def bills_tokens(self) -> bool:
        """Returns whether a token, of prompt or answer and under any conditions, is billed."""
        return (
            bool(self.prompt)
            or self.bills_completions
            or any(rule.price and rule.name in _PROMPTS for rule in self.rules)
        )

    @cached_property
    def of_text(self) -> Decimal:
        """A token of the prompt and one of the completion together, which sorts as their mean."""
        return EXACT.add(self.net("prompt"), self.net("completion"))

    def net(self, name: str) -> Decimal:
        """Returns one rate after the discount; 0 for a rate that is not set."""
        amount: Decimal = getattr(self, name) or ZERO
        if not self.discount:
            return amount
        return EXACT.multiply(amount, EXACT.subtract(ONE, self.discount))

    def highest(self, billable: Billable, variant: str, prompt_tokens: int) -> Decimal:
        """Returns the highest rate of a kind for a prompt of at most ``prompt_tokens``, in USD."""
        return self.table.find_highest((billable, variant), prompt_tokens)

    def find_most(self, prompt: int, completion: int, pieces: Usage, *, images: int) -> Decimal:
        """Returns the highest cost of a request with these counts, at any time, in USD."""
        ceilings = self.table.find_ceilings(prompt)
        tokens = ceilings.prompt * prompt + ceilings.completion * completion
        total = tokens + ceilings.request + ceilings.of_pieces(pieces, images=images)
        return Decimal(total).scaleb(-self.table.scale, EXACT)

    def highest_image(self, variant: str, prompt_tokens: int) -> Decimal:
        """Returns the highest rate of an image of an answer for such a prompt, in USD.

        ``variant`` is its size and quality; an empty one is any.
        """
        image = Usage(0, 0, output_images=1, image_variant=variant)
        rate = self.table.find_ceilings(prompt_tokens).of_pieces(image, images=0)
        return Decimal(rate).scaleb(-self.table.scale, EXACT)

    def text(self, name: str) -> str:
        """Returns one rate as plain decimal digits: no exponent, no trailing zeros."""
        return plain_digits(getattr(self, name) or ZERO)


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
        dumped.append({**row, "price": plain_digits(rule.price)})
    return dumped


def scale_rate(rate: Decimal, *, base: Decimal, new_base: Decimal) -> Decimal:
    """Returns ``rate * new_base / base``, rounded to the smallest step of a stored rate."""
    exact = EXACT.divide(EXACT.multiply(rate, new_base), base)
    return exact.quantize(_FINEST, "ROUND_HALF_EVEN", EXACT)


class Charge(NamedTuple):
    """One line of a generation's cost, in USD: a quantity of one kind at its rate.

    ``variant`` is the size and quality of an image. ``quantity`` counts units of the kind, with a
    fraction for seconds.
    """

    kind: RateKind
    variant: str
    quantity: Decimal
    rate: Decimal
    cost: Decimal


class Costs(NamedTuple):
    """The total cost of a generation and its parts, in nano-USD.

    Each amount is rounded once, half to even.
    """

    total: int
    prompt: int
    completion: int
    searches: int


def split_cost(price: Price, usage: Usage, at: int | None = None) -> Costs:
    """Returns the cost of a usage and of its parts; ``at`` is the request's instant.

    ``at`` is in Unix seconds; ``None`` is only for a price that does not depend on the time.
    """
    table = price.table
    rates, variant = table.find_rates(usage.prompt, at), usage.image_variant
    total = prompt = completion = searches = 0
    for place, quantity in find_quantities(usage):
        if not quantity:
            continue
        rate = rates.of_image(variant) if place == IMAGE else rates.rates[place]
        cost = quantity * rate
        total += cost
        if place in _PROMPT:
            prompt += cost
        elif place in _COMPLETION:
            completion += cost
        elif place in SEARCH_PLACES:
            searches += cost
    scale = table.scale
    return Costs(*(round_scaled(amount, scale) for amount in (total, prompt, completion, searches)))


def cost_nano(price: Price, usage: Usage, at: int | None = None) -> int:
    """Returns the cost of a usage in nano-USD, rounded half to even; see :func:`split_cost`."""
    return split_cost(price, usage, at).total


def list_charges(price: Price, usage: Usage, at: int | None = None) -> list[Charge]:
    """Returns the exact charge for each kind of a usage, in the order of ``KINDS``."""
    table = price.table
    rates, scale = table.find_rates(usage.prompt, at), table.scale
    charges = []
    for place, quantity in sorted(find_quantities(usage)):
        rate = rates.of_image(usage.image_variant) if place == IMAGE else rates.rates[place]
        if quantity and (rate or KINDS[place].unit == "token"):
            is_second = place == SECOND
            variant = usage.image_variant if place == IMAGE else KINDS[place].variant
            charges.append(
                Charge(
                    KINDS[place],
                    variant,
                    _unscale(quantity, 3 if is_second else 0),
                    _unscale(rate, scale - 3 if is_second else scale),
                    _unscale(quantity * rate, scale),
                )
            )
    return charges


def _unscale(amount: int, scale: int) -> Decimal:
    return Decimal(amount).scaleb(-scale, EXACT)


def round_scaled(amount: int, scale: int, *, round_up: bool = False) -> int:
    """Returns an amount of USD times ten to the power of ``scale`` as nano-USD.

    It is rounded half to even, or up for a bound such as a hold, and at most :data:`MOST_NANO`.
    """
    if not amount:
        return 0
    if scale <= _NANO_DIGITS:
        return min(amount * 10 ** (_NANO_DIGITS - scale), MOST_NANO)
    divisor: int = 10 ** (scale - _NANO_DIGITS)
    if round_up:
        return min(-(-amount // divisor), MOST_NANO)
    whole, rest = divmod(amount, divisor)
    twice = rest * 2
    return min(whole + (twice > divisor or (twice == divisor and whole & 1)), MOST_NANO)


def nano_usd(amount: Decimal) -> int:
    """Returns USD as integer nano-USD, rounded half to even."""
    return int(EXACT.multiply(amount, Decimal(NANO)).to_integral_value(ROUND_HALF_EVEN))


def usd(nano: int) -> float:
    """Returns nano-USD as a JSON number of USD; only for responses, because sums stay integers."""
    return nano / NANO
