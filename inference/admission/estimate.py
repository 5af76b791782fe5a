"""Computes the worst-case cost of a request, and the output that a balance affords; pure, exact.

These are upper bounds: settlement charges the actual usage. If an upstream counts no tokens, they
are estimated by the size of their text.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Context, Decimal
from typing import Final

import msgspec

from catalog.pricing import NANO, Price, nano_usd
from inference.requests.parsing import InferenceRequest
from inference.routing.routes import Candidate, Route

# The bound if neither the request nor the endpoint sets one; no model produces as many at once.
_OUTPUT_TOKENS: Final = 131_072
# English text has about four bytes a token.
BYTES_PER_TOKEN: Final = 4
_EXACT: Final = Context(prec=80)
_NANO: Final = Decimal(NANO)
_HUNDRED: Final = Decimal(100)


class Claim(msgspec.Struct, frozen=True):
    """The tokens that an upstream reported for a request that allowed fewer, and those allowed.

    ``excess_nano`` is what the claim would cost in credits beyond the allowed tokens, in nano-USD;
    ``upstream_excess_nano`` the same at the provider's price.
    """

    prompt: int
    completion: int
    allowed_prompt: int
    allowed_completion: int
    excess_nano: int
    upstream_excess_nano: int

    @property
    def reason(self) -> str:
        """Returns the count that exceeds its bound: ``prompt``, ``completion`` or ``both``."""
        if self.prompt <= self.allowed_prompt:
            return "completion"
        return "both" if self.completion > self.allowed_completion else "prompt"


def estimate_tokens(size: int) -> int:
    """Estimates the number of tokens in a text of ``size`` bytes."""
    return -(-size // BYTES_PER_TOKEN)


def output_bound(request: InferenceRequest, route: Route) -> int:
    """Returns the most tokens that one choice of a request can produce at an endpoint."""
    ceiling = route.max_completion_tokens
    if request.max_tokens is not None:
        if ceiling is not None and ceiling < request.max_tokens and not request.may_choose_bound:
            return ceiling
        return request.max_tokens
    return ceiling or route.context_length or _OUTPUT_TOKENS


def worst_case_nano(
    request: InferenceRequest, candidate: Candidate, *, max_tokens: int | None = None
) -> int:
    """Returns the most that a request can cost at a candidate's price, in nano-USD, rounded up.

    ``max_tokens`` replaces the output bound of the request.
    """
    price = candidate.route.price
    bound = output_bound(request, candidate.route) if max_tokens is None else max_tokens
    total = _fixed_cost(request, price)
    if bound:
        output = _EXACT.multiply(_highest_output_rate(price), Decimal(bound * request.choices))
        total = _EXACT.add(total, output)
    return nano_usd(total, round_up=True)


def affordable_tokens(request: InferenceRequest, candidate: Candidate, available_nano: int) -> int:
    """Returns the largest output bound whose worst case an amount covers.

    It is never more than the request's own bound, and 0 if the amount does not cover the prompt.
    """
    price = candidate.route.price
    bound = output_bound(request, candidate.route)
    available = _EXACT.divide(Decimal(available_nano), _NANO)
    left = _EXACT.subtract(available, _fixed_cost(request, price))
    if left < 0:
        return 0
    rate = _EXACT.multiply(_highest_output_rate(price), Decimal(request.choices))
    if not rate or _EXACT.multiply(rate, Decimal(bound)) <= left:
        return bound
    return int(_EXACT.divide_int(left, rate))


def _highest_output_rate(price: Price) -> Decimal:
    """Returns the higher rate of text and image output, because any output may be an image."""
    image = price.image_output
    return price.completion if image is None or image < price.completion else image


def _fixed_cost(request: InferenceRequest, price: Price) -> Decimal:
    """Returns the highest cost of a request without its output, in USD.

    Every prompt token counts at the highest of the rates for prompts, cache reads and cache writes,
    because the provider's use of its cache is not known in advance.
    """
    rate = price.prompt
    if price.cache_write is not None and price.cache_write > rate:
        rate = price.cache_write
    if price.cache_read is not None and price.cache_read > rate:
        rate = price.cache_read
    total = _EXACT.add(_EXACT.multiply(rate, Decimal(request.prompt_bound)), price.request)
    if request.images:
        total = _EXACT.add(total, _EXACT.multiply(price.image, Decimal(request.images)))
    return total


def fee_nano(upstream_nano: int, fee_percent: Decimal, *, round_up: bool = False) -> int:
    """Returns the fee in credits for a generation that the organization's own credential pays."""
    if not fee_percent:
        return 0
    rounding = ROUND_CEILING if round_up else ROUND_HALF_EVEN
    return int((Decimal(upstream_nano) * fee_percent / _HUNDRED).to_integral_value(rounding))
