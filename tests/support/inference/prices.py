"""Prices as their JSON states them, and strategies that draw such JSON."""

from __future__ import annotations

from decimal import Decimal
from functools import reduce
from typing import Any

import msgspec
from hypothesis import strategies as st

from catalog.pricing import Price, Usage, list_charges
from catalog.pricing.contract import Line, Pricing, read_price
from catalog.pricing.rates import EXACT
from catalog.pricing.rules import DAYS


def cost_details(whole: float, prompt: float, completions: float) -> dict[str, float]:
    """Returns what a usage says of the upstream's cost."""
    return {
        "upstream_inference_cost": whole,
        "upstream_inference_prompt_cost": prompt,
        "upstream_inference_completions_cost": completions,
    }


def read_pricing(pricing: dict[str, Any], *lines: dict[str, Any]) -> Price:
    """Returns the price of a pricing object, by default of 1 and 2 USD a token, and of lines."""
    simple = {"prompt": "1", "completion": "2"}
    return read_price(
        msgspec.convert(simple | pricing, Pricing), msgspec.convert(list(lines), list[Line])
    )


def sum_charges(price: Price, usage: Usage, at: int | None = None) -> Decimal:
    """Returns the exact cost of a usage in USD: the sum of its charges."""
    return reduce(EXACT.add, (each.cost for each in list_charges(price, usage, at)), Decimal(0))


rates = st.decimals(0, 10, places=9).map(lambda rate: format(rate, "f"))
conditions = st.one_of(
    st.builds(lambda least: {"min_prompt_tokens": least}, st.integers(1, 2000)),
    st.builds(
        lambda start, length: {"utc_start": start * 100, "utc_end": (start + length) % 24 * 100},
        st.integers(0, 23),
        st.integers(1, 23),
    ),
    st.builds(lambda days: {"utc_days": sorted(days)}, st.sets(st.sampled_from(DAYS), min_size=1)),
)
keys = ("input_cache_read", "input_cache_write", "input_cache_write_1h", "audio",
        "input_audio_cache", "internal_reasoning", "audio_output", "image_token", "web_search",
        "image", "request")  # fmt: skip
tiers = st.builds(
    lambda when, prices: when | prices,
    conditions,
    st.dictionaries(
        st.sampled_from(("prompt", "completion", "audio", "input_cache_read")), rates, min_size=1
    ),
)
pricings = st.builds(
    lambda base, prompt, completion, discount, overrides: (
        base
        | {"prompt": prompt, "completion": completion, "discount": discount, "overrides": overrides}
    ),
    st.dictionaries(st.sampled_from(keys), rates),
    rates,
    rates,
    st.sampled_from((Decimal(0), Decimal("0.25"), Decimal("0.333"))),
    st.lists(tiers, max_size=4),
)
counts = st.integers(0, 3000)
