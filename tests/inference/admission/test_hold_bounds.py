"""The hold is never less than the charge, whatever honest usage a provider reports."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from catalog.dialects.base import Operation, Reply
from catalog.pricing import Usage, cost_nano
from catalog.pricing.contract import InvalidPricing
from inference.admission.estimate import affordable_tokens, worst_case_nano
from inference.exchange.tally import Tally
from inference.requests import parsing
from inference.routing.routes import Candidate
from tests.support.inference.prices import pricings, read_pricing
from tests.support.inference.routes import candidate

BASE = parsing.parse(Operation.CHAT, b'{"model":"a/b","messages":[{"role":"user","content":"Hi"}]}')
LINES: list[dict[str, Any]] = [
    {"billable": "second", "unit": "second", "price": "0.0001"},
    {"billable": "character", "unit": "character", "price": "0.000015"},
    {"billable": "image", "unit": "image", "variant": "1024x1024/low", "price": "0.01"},
    {"billable": "image", "unit": "image", "variant": "1024x1024/high", "price": "0.2"},
    {"billable": "image", "unit": "image", "variant": "4K/high", "price": "0.4"},
    {"billable": "prompt", "unit": "token", "variant": "image", "price": "7"},
    {"billable": "search", "unit": "request", "variant": "request", "price": "0.3"},
    {
        "billable": "search",
        "unit": "search",
        "price": "0.5",
        "conditions": {"min_prompt_tokens": 1000},
    },
]
SMALL = st.integers(0, 2500)
ALLOWED = st.builds(
    Usage, st.just(0), st.just(0), searches=SMALL, milliseconds=SMALL, characters=SMALL,
    output_images=SMALL,
    image_variant=st.sampled_from(("", "1024x1024/low", "4096x4096/high", "9x9")),
)  # fmt: skip
CLAIMED = st.builds(
    Usage, SMALL, SMALL, cached=SMALL, cache_write=SMALL, reasoning=SMALL, image_output=SMALL,
    cache_write_1h=SMALL, audio=SMALL, audio_cached=SMALL, audio_output=SMALL, searches=SMALL,
    milliseconds=SMALL, characters=SMALL, output_images=SMALL, image_prompt=SMALL,
    citations=SMALL, research=SMALL,
    image_variant=st.sampled_from(("", "1024x1024/low", "1024x1024/high", "9x9")),
)  # fmt: skip


# What a model does by itself, with the most that it may do.
OWN_WAYS = st.lists(
    st.tuples(
        st.sampled_from((("search", "unasked", "search"), ("prompt", "citation", "token"),
                         ("reasoning", "research", "token"))),
        st.integers(1, 2500),
    ),
    max_size=3,
    unique_by=lambda pair: pair[0],
).map(
    lambda pairs: [
        {"billable": billable, "variant": variant, "unit": unit, "price": "0.7", "most": most}
        for (billable, variant, unit), most in pairs
    ]
)  # fmt: skip


@given(
    pricings, ALLOWED, CLAIMED, SMALL, SMALL, st.integers(0, 3), st.integers(0, 10**10), OWN_WAYS
)
def test_the_hold_covers_whatever_is_believed_of_a_claim(
    pricing: dict[str, Any],
    allowed: Usage,
    claimed: Usage,
    prompt_bound: int,
    max_tokens: int,
    images: int,
    at: int,
    own_ways: list[dict[str, Any]],
) -> None:
    """The usage is arbitrary: what the request does not allow is not believed."""
    try:
        price = read_pricing(pricing, *LINES, *own_ways)
    except InvalidPricing:
        assume(False)
    request = structs.replace(
        BASE, prompt_bound=prompt_bound, max_tokens=max_tokens, images=images, allowed=allowed
    )
    chosen = candidate(price)
    tally = Tally(request, Decimal(0), at)
    tally.allow(chosen)
    tally.add(Reply({}, None, claimed, "stop", output_bytes=1))
    usage = tally.count().usage
    hold = worst_case_nano(request, chosen)
    assert tally.price(usage, chosen).upstream_nano <= hold
    if usage != claimed and tally.find_claim() is None:
        # What was dropped is a part of a total, or the name of a size, not a count of its own.
        counted = ["prompt", "completion", "output_images"]
        # Searches that nobody asked for are no claim: they are the provider's own way to answer.
        billed = {line["variant"] for line in own_ways}
        counted += ["searches"] if allowed.searches or "unasked" in billed else []
        counted += ["citations"] if "citation" in billed else []
        counted += ["research"] if "research" in billed else []
        # The characters of a text to speak are known, and a length that is missing is estimated.
        counted += [] if allowed.characters else ["characters"]
        counted += ["milliseconds"] if claimed.milliseconds else []
        assert all(getattr(usage, name) == getattr(claimed, name) for name in counted)


@given(pricings, SMALL, st.integers(1, 2500), st.integers(0, 10**12))
def test_affordable_output_fits_under_tiers_and_one_more_token_does_not(
    pricing: dict[str, Any], prompt_bound: int, max_tokens: int, available: int
) -> None:
    try:
        chosen = candidate(read_pricing(pricing))
    except InvalidPricing:
        assume(False)
    request = structs.replace(BASE, prompt_bound=prompt_bound, max_tokens=max_tokens)
    tokens = affordable_tokens(request, chosen, available)
    if tokens:
        assert worst_case_nano(request, chosen, max_tokens=tokens) <= available
    if tokens < max_tokens:
        assert worst_case_nano(request, chosen, max_tokens=tokens + 1) > available


def with_override(**override: Any) -> Candidate:
    return candidate(read_pricing({"overrides": [override]}))


def test_a_tier_counts_once_the_bound_of_the_prompt_reaches_it() -> None:
    chosen = with_override(min_prompt_tokens=1000, prompt="5", completion="7")
    for bound, nano in ((999, 999 + 20), (1000, 1000 + 20), (1001, 5005 + 70)):
        request = structs.replace(BASE, prompt_bound=bound, max_tokens=10)
        assert worst_case_nano(request, chosen) == nano * 10**9


def test_a_window_counts_always_because_time_passes_before_admission() -> None:
    chosen = with_override(utc_start=100, utc_end=200, prompt="5")
    request = structs.replace(BASE, prompt_bound=10, max_tokens=0)
    assert worst_case_nano(request, chosen) == 50 * 10**9
    assert cost_nano(chosen.route.price, Usage(10, 0), 0) == 10 * 10**9


def test_a_window_counts_for_a_prompt_of_no_tokens_too() -> None:
    chosen = with_override(utc_start=100, utc_end=200, completion="7")
    request = structs.replace(BASE, prompt_bound=0, max_tokens=1)
    assert worst_case_nano(request, chosen) == 7 * 10**9
