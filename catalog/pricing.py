"""From a price and a usage to a cost: exact decimals in, integer nano-USD out, rounded once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal
from typing import Final

import msgspec

NANO: Final = 1_000_000_000
_ZERO: Final = Decimal(0)
# 36 digits of price times 19 digits of tokens must not be rounded on the way.
_EXACT: Final = Context(prec=80)
# The finest rate that is stored.
_FINEST: Final = Decimal("1e-30")


@dataclass(frozen=True, slots=True)
class Price:
    """USD per prompt token, completion token, image of the prompt and request.

    ``cache_read`` and ``cache_write`` price prompt tokens that a provider read from or wrote to its
    cache, ``image_output`` completion tokens that are a picture; ``None`` means that they cost as
    any other token.
    """

    prompt: Decimal
    completion: Decimal
    image: Decimal = _ZERO
    request: Decimal = _ZERO
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    image_output: Decimal | None = None

    @property
    def is_free(self) -> bool:
        """Tells whether nothing that a request may use costs anything."""
        return not (
            self.prompt or self.completion or self.image or self.request or self.image_output
        )

    def text(self, name: str) -> str:
        """Returns one rate as plain decimal digits: no exponent, no trailing zeros."""
        return decimal_text(getattr(self, name) or _ZERO)


RATES: Final = tuple(field.name for field in fields(Price))


class Usage(msgspec.Struct, frozen=True):
    """What a generation used, in tokens.

    ``cached`` and ``cache_write`` are part of ``prompt``, ``reasoning`` and ``image_output`` (what
    was drawn) of ``completion``; ``images`` counts the prompt's.
    """

    prompt: int
    completion: int
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    images: int = 0
    image_output: int = 0


def decimal_text(value: Decimal) -> str:
    """Returns plain decimal digits: ``0.0000005``, never ``5E-7``; ``1.50`` becomes ``1.5``."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def proportional(rate: Decimal, *, base: Decimal, new_base: Decimal) -> Decimal:
    """Returns what is to ``new_base`` as ``rate`` is to ``base``, rounded to what can be stored."""
    exact = _EXACT.divide(_EXACT.multiply(rate, new_base), base)
    return exact.quantize(_FINEST, ROUND_HALF_EVEN, _EXACT)


def prompt_parts(price: Price, usage: Usage) -> tuple[tuple[int, Decimal], ...]:
    """Returns tokens and rate of the prompt's parts: plain, read from a cache, written to one."""
    cached = min(usage.cached, usage.prompt)
    written = min(usage.cache_write, usage.prompt - cached)
    return (
        (usage.prompt - cached - written, price.prompt),
        (cached, price.prompt if price.cache_read is None else price.cache_read),
        (written, price.prompt if price.cache_write is None else price.cache_write),
    )


def prompt_cost(price: Price, usage: Usage) -> Decimal:
    """Returns the exact USD cost of the prompt, cached tokens at their own rates."""
    total = _ZERO
    for tokens, rate in prompt_parts(price, usage):
        if tokens:
            total = _EXACT.add(total, _EXACT.multiply(rate, Decimal(tokens)))
    return total


def completion_cost(price: Price, usage: Usage) -> Decimal:
    """Returns the exact USD cost of the completion, of which pictures have their own rate."""
    if price.image_output is None or not usage.image_output:
        return _EXACT.multiply(price.completion, Decimal(usage.completion))
    drawn = min(usage.image_output, usage.completion)
    return _EXACT.add(
        _EXACT.multiply(price.completion, Decimal(usage.completion - drawn)),
        _EXACT.multiply(price.image_output, Decimal(drawn)),
    )


def total_cost(price: Price, usage: Usage) -> Decimal:
    """Returns the exact USD cost of a generation."""
    total = _EXACT.add(prompt_cost(price, usage), completion_cost(price, usage))
    total = _EXACT.add(total, _EXACT.multiply(price.image, Decimal(usage.images)))
    return _EXACT.add(total, price.request)


def nano_usd(amount: Decimal, *, round_up: bool = False) -> int:
    """Rounds USD to integer nano-USD: half to even, or up for a bound such as a hold."""
    rounding = ROUND_CEILING if round_up else ROUND_HALF_EVEN
    return int(_EXACT.multiply(amount, Decimal(NANO)).to_integral_value(rounding))


def usd(nano: int) -> float:
    """Renders nano-USD as a JSON number of USD, at the edge only; sums stay integers."""
    return nano / NANO
