"""Computes costs from prices and usages: exact, rounded once to integer nano-USD."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from typing import Final, NamedTuple

from catalog.pricing.price import Price
from catalog.pricing.rates import (
    BESIDE_COMPLETION,
    BESIDE_PROMPT,
    COMPLETION_PLACES,
    EXACT,
    IMAGE,
    PROMPT_PLACES,
    SEARCH_PLACES,
    SECOND,
    find_quantities,
)
from catalog.pricing.rules import KINDS, Kind
from catalog.pricing.usage import Usage

NANO: Final = 1_000_000_000
_NANO_DIGITS: Final = 9
_PROMPT: Final = PROMPT_PLACES | BESIDE_PROMPT
_COMPLETION: Final = COMPLETION_PLACES | BESIDE_COMPLETION


class Charge(NamedTuple):
    """One line of a generation's cost, in USD: a quantity of one kind at its rate.

    ``variant`` is the size and quality of an image. ``quantity`` counts units of the kind, with a
    fraction for seconds.
    """

    kind: Kind
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
        cost = quantity * rates.of(place, variant)
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
    table = price.table
    rates, variant = table.find_rates(usage.prompt, at), usage.image_variant
    total = 0
    for place, quantity in find_quantities(usage):
        if quantity:
            total += quantity * rates.of(place, variant)
    return round_scaled(total, table.scale)


def list_charges(price: Price, usage: Usage, at: int | None = None) -> list[Charge]:
    """Returns the exact charge for each kind of a usage, in the order of ``KINDS``."""
    table = price.table
    rates, scale = table.find_rates(usage.prompt, at), table.scale
    charges = []
    for place, quantity in sorted(find_quantities(usage)):
        rate = rates.of(place, usage.image_variant)
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

    It is rounded half to even, or up for a bound such as a hold.
    """
    if not amount:
        return 0
    if scale <= _NANO_DIGITS:
        raised: int = amount * 10 ** (_NANO_DIGITS - scale)
        return raised
    divisor: int = 10 ** (scale - _NANO_DIGITS)
    if round_up:
        return -(-amount // divisor)
    whole, rest = divmod(amount, divisor)
    twice = rest * 2
    return whole + (twice > divisor or (twice == divisor and whole & 1))


def nano_usd(amount: Decimal, *, round_up: bool = False) -> int:
    """Returns USD as integer nano-USD, rounded half to even, or up for a bound such as a hold."""
    rounding = ROUND_CEILING if round_up else ROUND_HALF_EVEN
    return int(EXACT.multiply(amount, Decimal(NANO)).to_integral_value(rounding))


def usd(nano: int) -> float:
    """Returns nano-USD as a JSON number of USD; only for responses, because sums stay integers."""
    return nano / NANO
