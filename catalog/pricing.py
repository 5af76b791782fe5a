"""Computes costs from prices and usages: exact decimals, rounded once to integer nano-USD."""

from __future__ import annotations

from dataclasses import dataclass, fields
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal
from typing import Final

import msgspec

NANO: Final = 1_000_000_000
_ZERO: Final = Decimal(0)
# The product of 36 digits of price and 19 digits of tokens must not be rounded.
_EXACT: Final = Context(prec=80)
# The smallest step of a stored rate.
_FINEST: Final = Decimal("1e-30")


@dataclass(frozen=True, slots=True)
class Price:
    """USD per prompt token, completion token, image of the prompt and request.

    ``cache_read`` and ``cache_write`` are the rates of prompt tokens that the provider read from or
    wrote to its cache; ``image_output`` is the rate of completion tokens of an image. ``None``
    means the rate of other tokens.
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
        """Returns whether every part of a request is free."""
        return not (
            self.prompt or self.completion or self.image or self.request or self.image_output
        )

    def text(self, name: str) -> str:
        """Returns one rate as plain decimal digits: no exponent, no trailing zeros."""
        return decimal_text(getattr(self, name) or _ZERO)


RATES: Final = tuple(field.name for field in fields(Price))


class Usage(msgspec.Struct, frozen=True):
    """The usage of a generation: tokens, and what else providers bill.

    ``cached``, ``cache_write``, ``cache_write_1h``, ``audio``, ``audio_cached`` (cached tokens of
    audio) and ``image_prompt`` (tokens of images) are parts of ``prompt``. ``reasoning``,
    ``image_output`` (tokens of generated images) and ``audio_output`` are parts of ``completion``.
    An answer without tokens has 0 of both.

    ``images`` is the number of images in the prompt, and ``output_images`` that of the answer;
    ``image_variant`` is their size and quality in the words of the price list, for instance
    ``1024x1024/high``. ``searches`` counts searches of the web, or the search units of a rerank.
    ``milliseconds`` is the length of the audio, in or out, and ``characters`` that of the text to
    speak.
    """

    prompt: int
    completion: int
    cached: int = 0
    cache_write: int = 0
    reasoning: int = 0
    images: int = 0
    image_output: int = 0
    cache_write_1h: int = 0
    audio: int = 0
    audio_cached: int = 0
    audio_output: int = 0
    searches: int = 0
    milliseconds: int = 0
    characters: int = 0
    output_images: int = 0
    image_variant: str = ""
    image_prompt: int = 0


def decimal_text(value: Decimal) -> str:
    """Returns plain decimal digits: ``0.0000005``, not ``5E-7``; ``1.5`` for ``1.50``."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def scale_rate(rate: Decimal, *, base: Decimal, new_base: Decimal) -> Decimal:
    """Returns ``rate * new_base / base``, rounded to the smallest step of a stored rate."""
    exact = _EXACT.divide(_EXACT.multiply(rate, new_base), base)
    return exact.quantize(_FINEST, ROUND_HALF_EVEN, _EXACT)


def prompt_parts(price: Price, usage: Usage) -> tuple[tuple[int, Decimal], ...]:
    """Returns tokens and rate of each part of the prompt: uncached, cache reads, cache writes."""
    cached = min(usage.cached, usage.prompt)
    written = min(usage.cache_write, usage.prompt - cached)
    return (
        (usage.prompt - cached - written, price.prompt),
        (cached, price.prompt if price.cache_read is None else price.cache_read),
        (written, price.prompt if price.cache_write is None else price.cache_write),
    )


def prompt_cost(price: Price, usage: Usage) -> Decimal:
    """Returns the exact cost of the prompt in USD, with cached tokens at their own rates."""
    total = _ZERO
    for tokens, rate in prompt_parts(price, usage):
        if tokens:
            total = _EXACT.add(total, _EXACT.multiply(rate, Decimal(tokens)))
    return total


def completion_cost(price: Price, usage: Usage) -> Decimal:
    """Returns the exact cost of the completion in USD, with image tokens at their own rate."""
    if price.image_output is None or not usage.image_output:
        return _EXACT.multiply(price.completion, Decimal(usage.completion))
    image_tokens = min(usage.image_output, usage.completion)
    return _EXACT.add(
        _EXACT.multiply(price.completion, Decimal(usage.completion - image_tokens)),
        _EXACT.multiply(price.image_output, Decimal(image_tokens)),
    )


def total_cost(price: Price, usage: Usage) -> Decimal:
    """Returns the exact cost of a generation in USD."""
    total = _EXACT.add(prompt_cost(price, usage), completion_cost(price, usage))
    total = _EXACT.add(total, _EXACT.multiply(price.image, Decimal(usage.images)))
    return _EXACT.add(total, price.request)


def nano_usd(amount: Decimal, *, round_up: bool = False) -> int:
    """Returns USD as integer nano-USD, rounded half to even, or up for a bound such as a hold."""
    rounding = ROUND_CEILING if round_up else ROUND_HALF_EVEN
    return int(_EXACT.multiply(amount, Decimal(NANO)).to_integral_value(rounding))


def usd(nano: int) -> float:
    """Returns nano-USD as a JSON number of USD; only for responses, because sums stay integers."""
    return nano / NANO
