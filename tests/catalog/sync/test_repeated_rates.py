"""A rate that a list states once more follows the tiers of the rate that it repeats."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from catalog import imports
from catalog.pricing import Usage, cost_nano
from catalog.sync import litellm, models_dev, openrouter
from catalog.sync.documents import read_json
from catalog.sync.offers import ListOffer, read_offers
from tests.support.inference.prices import read_pricing

LONG: Final = 200_000
# Above 200,000 tokens of the prompt, the prompt costs twice, and the answer 1.5 times as much.
GROK: Final = {
    "xai/grok-4.20-0309": {
        "litellm_provider": "xai",
        "mode": "chat",
        "input_cost_per_token": 1.25e-06,
        "output_cost_per_token": 1e-05,
        "input_cost_per_image_token": 1.25e-06,
        "input_cost_per_token_above_200k_tokens": 2.5e-06,
        "output_cost_per_token_above_200k_tokens": 1.5e-05,
    }
}
SOLD: Final = {
    "id": "acme/thinker",
    "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
    "pricing": {
        "prompt": "0.00000125",
        "completion": "0.00001",
        "internal_reasoning": "0.00001",
        "overrides": [
            {"min_prompt_tokens": LONG, "prompt": "0.0000025", "completion": "0.000015"},
        ],
    },
}
TIER: Final = {"type": "context", "size": LONG}
THINKER: Final = {
    "cost": {
        "input": 1.25,
        "output": 10,
        "reasoning": 10,
        "tiers": [{"input": 2.5, "output": 15, "reasoning": 15, "tier": TIER}],
    }
}


@pytest.mark.parametrize(
    ("module", "document"),
    [
        (litellm, GROK),
        (openrouter, {"data": [SOLD]}),
        (models_dev, {"google": {"models": {"gemini": THINKER}}}),
    ],
)
def test_images_and_thoughts_cost_what_a_tier_says(module: Any, document: Any) -> None:
    found = module.read_list(read_json(msgspec.json.encode(document)), date(2026, 11, 12))
    [offer] = found.offers.values()
    price = read_pricing(offer.pricing, *offer.lines)
    usage = Usage(LONG, 10_000, image_prompt=60_000, reasoning=9_000)
    assert cost_nano(price, usage) == 200_000 * 1_250 + 10_000 * 10_000
    assert cost_nano(price, msgspec.structs.replace(usage, prompt=250_000)) == 775_000_000


def read_pair(
    pricing: dict[str, Any], lines: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[Any]]:
    """Returns the pricing and the lines of an offer as a list keeps them."""
    offer = ListOffer("x", "acme", "x", pricing, tuple(lines))
    [kept] = read_offers([("x", {})], lambda _, __: offer).offers.values()
    return dict(kept.pricing), list(kept.lines)


IMAGE: Final = {"billable": "prompt", "variant": "image", "unit": "token", "price": "1"}
SEARCH: Final = {"billable": "search", "variant": "request", "unit": "request", "price": "1"}
BASE: Final = {"prompt": "1", "completion": "2"}


@pytest.mark.parametrize(
    ("rates", "override", "lines", "left_out"),
    [
        ({"input_cache_read": "1"}, {"prompt": "3"}, [IMAGE], {"input_cache_read", "image"}),
        # One that repeats a rate that is left out.
        (
            {"audio": "1", "input_audio_cache": "1"}, {"prompt": "3"}, [SEARCH],
            {"audio", "input_audio_cache"},
        ),
        # One that repeats a rate which the tier states.
        (
            {"audio": "5", "input_audio_cache": "5"}, {"audio": "6"}, [IMAGE],
            {"input_audio_cache"},
        ),
        # Another rate, one that the tier states, and one whose own the tier does not change.
        ({"internal_reasoning": "4"}, {"completion": "3"}, [IMAGE], set()),
        ({"input_cache_read": "1"}, {"prompt": "3", "input_cache_read": "2"}, [], set()),
        ({"audio_output": "2"}, {"prompt": "3"}, [SEARCH], set()),
        ({"input_cache_read": "1"}, {}, [IMAGE], set()),
    ],
)  # fmt: skip
def test_only_what_hides_a_tier_is_left_out(
    rates: dict[str, str], override: dict[str, str], lines: list[Any], left_out: set[str]
) -> None:
    overrides = [{"min_prompt_tokens": LONG, **override}] if override else []
    pricing = {**BASE, **rates, "discount": "0.5", "overrides": overrides}
    assert read_pair(pricing, lines) == (
        {name: rate for name, rate in pricing.items() if name not in left_out},
        [line for line in lines if line["variant"] not in left_out],
    )


def test_the_bundle_hides_no_tier() -> None:
    path = Path(imports.__file__).with_name("data") / "catalogue.json"
    for row in json.loads(path.read_text())["endpoints"]:
        stated = row["pricing"], row.get("lines", [])
        assert read_pair(*stated) == stated, row["model"]
