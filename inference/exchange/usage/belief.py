"""Decides how much of a usage is believed, and what an upstream claimed beyond it; pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from catalog.pricing import Usage
from catalog.pricing.usage import COMPLETION_PARTS, PIECES, PROMPT_PARTS
from inference.admission.estimate import Claim

# The tokens that a template of the provider or a system prompt of the deployment may add to a
# prompt. They are believed while the bounds of the request pay for them; validation allows as many.
_ADDED_TOKENS: Final = 16_384
# The largest amount that is recorded of a claim: a million USD. Thousands of such claims can be
# written off for one organization before its accounts are full.
_MOST_NANO: Final = 10**15


class Cost(NamedTuple):
    """The amount that credits pay, and the cost at the provider's price, in nano-USD."""

    credits_nano: int
    upstream_nano: int


NO_COST: Final = Cost(0, 0)
# Returns the cost of a usage at the price of the candidate that answers.
CostOf = Callable[[Usage], Cost]


class Allowance(NamedTuple):
    """The most that an answer may use: tokens of its prompt, of its completion, and pieces."""

    prompt: int
    completion: int
    pieces: Usage


def believe(usage: Usage, allowance: Allowance, cost_of: CostOf | None) -> Usage:
    """Returns a usage without what exceeds its bounds; a part is never more than its total.

    ``cost_of`` is ``None`` while no candidate answers.
    """
    if usage.prompt > allowance.prompt and _is_affordable(usage, allowance, cost_of):
        return usage
    prompt = min(usage.prompt, allowance.prompt)
    completion = min(usage.completion, allowance.completion)
    if (
        usage.cached + usage.cache_write + usage.cache_write_1h <= prompt == usage.prompt
        and usage.reasoning <= completion == usage.completion
        and usage.image_output <= completion
        and not _has_rare_units(usage)
    ):
        return usage
    return _clip_usage(usage, Allowance(prompt, completion, allowance.pieces))


def find_claim(usage: Usage, allowance: Allowance, cost_of: CostOf) -> Claim | None:
    """Returns what a usage claims beyond what was allowed; ``None`` if nothing.

    The amounts of a claim without measure end at the range of the ledger.
    """
    has_claimed_tokens = usage.prompt > allowance.prompt or usage.completion > allowance.completion
    if not has_claimed_tokens and not _has_claimed_pieces(usage, allowance.pieces):
        return None
    if _is_affordable(usage, allowance, cost_of):
        return None
    believed, claimed = cost_of(believe(usage, allowance, cost_of)), cost_of(usage)
    return Claim(
        prompt=usage.prompt,
        completion=usage.completion,
        allowed_prompt=allowance.prompt,
        allowed_completion=allowance.completion,
        excess_nano=_clip_amount(claimed.credits_nano - believed.credits_nano),
        upstream_excess_nano=_clip_amount(claimed.upstream_nano - believed.upstream_nano),
    )


def _is_affordable(usage: Usage, allowance: Allowance, cost_of: CostOf | None) -> bool:
    """Returns whether a prompt that grew on its way costs no more than what was allowed."""
    if cost_of is None or usage.prompt > allowance.prompt + _ADDED_TOKENS:
        return False
    if _clip_usage(usage, allowance._replace(prompt=usage.prompt)) != usage:
        return False
    allowed = replace(allowance.pieces, prompt=allowance.prompt, completion=allowance.completion)
    return cost_of(usage).upstream_nano <= cost_of(allowed).upstream_nano


def _has_rare_units(usage: Usage) -> bool:
    """Returns whether a usage has parts or pieces that few requests have."""
    return bool(
        usage.searches or usage.audio or usage.audio_output or usage.cache_write_1h
        or usage.milliseconds or usage.characters or usage.output_images or usage.audio_cached
        or usage.image_prompt or usage.citations or usage.research
    )  # fmt: skip


def _has_claimed_pieces(usage: Usage, allowed: Usage) -> bool:
    """Returns whether a usage counts more of what is not a token than the request allows."""
    return _has_rare_units(usage) and any(
        getattr(usage, name) > getattr(allowed, name) for name in PIECES if name != "images"
    )


def _clip_usage(usage: Usage, allowance: Allowance) -> Usage:
    """Returns a usage within bounds: its parts within their totals, its pieces as allowed.

    The request decides the size and quality of images, if it names them.
    """
    prompt = min(usage.prompt, allowance.prompt)
    completion = min(usage.completion, allowance.completion)
    parts: dict[str, Any] = {}
    parts["cached"] = min(usage.cached, prompt)
    parts["cache_write"] = min(usage.cache_write, prompt - parts["cached"])
    written = parts["cached"] + parts["cache_write"]
    parts["cache_write_1h"] = min(usage.cache_write_1h, prompt - written)
    for names, total in ((PROMPT_PARTS, prompt), (COMPLETION_PARTS, completion)):
        for name in names:
            parts.setdefault(name, min(getattr(usage, name), total))
    for name in PIECES:
        most = usage.images if name == "images" else getattr(allowance.pieces, name)
        parts[name] = min(getattr(usage, name), most)
    variant = allowance.pieces.image_variant or usage.image_variant
    return Usage(prompt, completion, image_variant=variant, **parts)


def _clip_amount(amount_nano: int) -> int:
    return min(max(amount_nano, 0), _MOST_NANO)
