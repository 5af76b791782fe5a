"""Computes the worst-case cost of a request, and the output that a balance affords; pure, exact.

These are upper bounds: settlement charges the actual usage.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from catalog.operations import OPERATIONS
from catalog.pricing import Usage, round_scaled
from catalog.pricing.price import NOTHING
from catalog.pricing.usage import PIECES
from catalog.tokens import UNSTATED_LIMITS
from inference.requests.operations import ROWS
from inference.requests.operations.server_tools import NO_TOOLS
from inference.requests.parsing import NO_PIECES, InferenceRequest
from inference.routing.routes import Candidate, Route

_NANO_DIGITS: Final = 9
# The pictures of one choice of a chat that a hold covers, where each of them has a price.
_MOST_PICTURES: Final = 4
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
        """Returns the count that exceeds its bound: prompt, completion, both, or other units."""
        has_excess = self.completion > self.allowed_completion
        if self.prompt > self.allowed_prompt:
            return "both" if has_excess else "prompt"
        return "completion" if has_excess else "units"


def output_bound(request: InferenceRequest, route: Route) -> int:
    """Returns the most tokens that one choice of a request can produce at an endpoint."""
    ceiling = route.max_completion_tokens
    if request.max_tokens is not None:
        if ceiling is not None and ceiling < request.max_tokens and not request.may_choose_bound:
            return ceiling
        return request.max_tokens
    return ceiling or route.context_length or route.limits.output


class UsageBounds(NamedTuple):
    """The most that a request may use at a candidate.

    ``media`` are those tokens of its ``prompt`` that are no text, and ``thought`` those of each
    answer that do not count towards the bound of its output. ``pieces`` are not counted in tokens.
    ``has_sound`` says that any token may be one of sound.
    """

    prompt: int
    media: int
    thought: int
    pieces: Usage
    has_sound: bool


def find_bounds(request: InferenceRequest, candidate: Candidate) -> UsageBounds:
    """Returns the most that a request may use at a candidate.

    A search that the provider is not asked for costs nothing; the results of one that it is asked
    for may join the prompt. What a model does by itself is bounded by its price.
    """
    route, pieces = candidate.route, request.allowed
    text, media, thought = request.prompt_bound, 0, 0
    # Sound that was heard before is in the prompt again.
    is_written = OPERATIONS[request.operation].is_written
    has_sound = not is_written or "audio" in request.outputs
    counts = request.text_counts
    if request.media or counts is not None or route.limits is not UNSTATED_LIMITS:
        text, media, thought = _bound_tokens(request, candidate)
    price = route.price
    if request.server_tools is NO_TOOLS and not price.rules:
        return UsageBounds(text + media, media, thought, pieces, has_sound)
    if request.server_tools.searches:
        if candidate.may_search(request):
            text += candidate.count_result_tokens(request)
        else:
            pieces = replace(pieces, searches=0)
    if is_written and price.bills_images:
        pieces = replace(pieces, output_images=_MOST_PICTURES * request.choices)
    if (unasked := price.unasked) is not NOTHING:
        pieces = replace(
            pieces,
            searches=max(pieces.searches, unasked.searches),
            citations=unasked.citations,
            research=unasked.research,
        )
    return UsageBounds(text + media, media, thought, pieces, has_sound)


def _bound_tokens(request: InferenceRequest, candidate: Candidate) -> tuple[int, int, int]:
    """Returns the most tokens of the text, of the media and of one thought at a candidate.

    No provider takes or thinks more than the context of its model, or than it is told.
    """
    route = candidate.route
    limits = route.limits
    text = limits.bound_text(
        request.prompt_bound, request.messages or request.choices, request.tool_count
    )
    if request.text_counts is not None and limits.tokens_per_byte == 1:
        text += route.family.bound_more(request.text_counts)
    media, thought = sum(map(limits.media.bound, request.media)), limits.thought
    if route.context_length is not None:
        media, thought = min(media, route.context_length), min(thought, route.context_length)
    if thought and (budget := candidate.find_thinking_budget(request)) is not None:
        thought = budget
    return text, media, thought


def describe_bound(request: InferenceRequest, candidate: Candidate) -> dict[str, Any]:
    """Describes what a hold at a candidate consists of, in tokens and in other units."""
    route, bounds = candidate.route, find_bounds(request, candidate)
    added = route.limits.bound_text(0, request.messages or request.choices, request.tool_count)
    results = 0
    if request.server_tools.searches and candidate.may_search(request):
        results = candidate.count_result_tokens(request)
    pieces = {name: getattr(bounds.pieces, name) for name in PIECES}
    return {
        "tokenizer": route.family.family,
        "text": bounds.prompt - bounds.media - added - results,
        "added": added,
        "media": bounds.media,
        "results": results,
        "choices": request.choices,
        "answer": output_bound(request, route),
        "thought": bounds.thought,
        "units": {name: count for name, count in pieces.items() if count},
    }


def worst_case_nano(
    request: InferenceRequest, candidate: Candidate, *, max_tokens: int | None = None
) -> int:
    """Returns the most that a request can cost at a candidate's price, in nano-USD, rounded up.

    ``max_tokens`` replaces the output bound of the request.
    """
    price = candidate.route.price
    bound = output_bound(request, candidate.route) if max_tokens is None else max_tokens
    fixed, output_rate = _find_ceilings(request, candidate)
    total = fixed + output_rate * bound * request.choices
    return round_scaled(total, price.table.scale, round_up=True)


def affordable_tokens(request: InferenceRequest, candidate: Candidate, available_nano: int) -> int:
    """Returns the largest output bound whose worst case an amount covers.

    It is never more than the request's own bound, and 0 if the amount does not cover the prompt, or
    does not cover an answer that no request can bound.
    """
    price = candidate.route.price
    bound = output_bound(request, candidate.route)
    fixed, output_rate = _find_ceilings(request, candidate)
    rate = output_rate * request.choices
    # Both sides are integers: one is in nano-USD, the other in the price's own scale.
    scale = price.table.scale
    available: int = available_nano * 10 ** max(scale - _NANO_DIGITS, 0)
    raised: int = 10 ** max(_NANO_DIGITS - scale, 0)
    left = available - fixed * raised
    if left < 0:
        return 0
    if not rate or rate * raised * bound <= left:
        return bound
    if not ROWS[request.operation].bound_names:
        return 0  # no parameter tells the provider of a lower bound
    return left // (rate * raised)


def _find_ceilings(request: InferenceRequest, candidate: Candidate) -> tuple[int, int]:
    """Returns the highest cost of a request without its output, and that of an output token.

    Every token counts at the highest rate of its class that any rule can give it: neither the
    provider's use of its cache nor the kind of the output is known in advance. Only media that the
    request has or asks for have their rates. A tier counts if the bound of the prompt reaches it, a
    window of time always. Both amounts are in USD, times ten to the power of the price's scale.
    """
    bounds = find_bounds(request, candidate)
    ceilings = candidate.route.price.table.find_ceilings(bounds.prompt)
    text, output, pieces = ceilings.text, ceilings.answer, bounds.pieces
    if bounds.has_sound:
        text, output = ceilings.prompt, ceilings.completion
    fixed = text * (bounds.prompt - bounds.media) + ceilings.request
    if bounds.media:
        fixed += ceilings.prompt * bounds.media
    if bounds.thought:
        fixed += output * bounds.thought * request.choices
    if request.images or pieces is not NO_PIECES:
        fixed += ceilings.of_pieces(pieces, images=request.images)
    return fixed, output


def fee_nano(upstream_nano: int, fee_percent: Decimal, *, round_up: bool = False) -> int:
    """Returns the fee in credits for a generation that the organization's own credential pays."""
    if not fee_percent:
        return 0
    rounding = ROUND_CEILING if round_up else ROUND_HALF_EVEN
    return int((Decimal(upstream_nano) * fee_percent / _HUNDRED).to_integral_value(rounding))
