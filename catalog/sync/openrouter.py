"""OpenRouter's ``GET /models``: models with the prices at which OpenRouter itself sells them.

https://openrouter.ai/docs/models describes it. Rates are texts of decimals in USD per unit, under
the same names as in a catalogue file.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any, Final

from catalog.pricing.contract import CHEAPEST_IMAGE
from catalog.sync.documents import InvalidRow, UnreadableList
from catalog.sync.offers import (
    FREE,
    ListOffer,
    PriceList,
    describe_model,
    read_count,
    read_offers,
    read_rates,
    read_words,
)

_PROVIDER: Final[Mapping[str, Any]] = {
    "slug": "openrouter",
    "name": "OpenRouter",
    "dialect": "openai",
    "base_url": "https://openrouter.ai/api/v1",
    # What OpenRouter does with prompts depends on the provider that it chooses.
    "data_policy": {"training": True, "retains_prompts": True},
}
_RATES: Final = {name: name for name in (
    "prompt", "completion", "image", "image_token", "image_output", "audio", "audio_output",
    "input_audio_cache", "request", "web_search", "internal_reasoning", "input_cache_read",
    "input_cache_write", "input_cache_write_1h",
)}  # fmt: skip
_CONDITIONS: Final = ("min_prompt_tokens", "utc_start", "utc_end", "utc_days")


def read_list(document: Mapping[str, Any], as_of: date) -> PriceList:
    """Returns the offers of the list."""
    rows = document.get("data")
    if not isinstance(rows, list):
        raise UnreadableList("The list has no member data with models.")
    found = read_offers(
        ((str(row.get("id")) if isinstance(row, dict) else "?", row) for row in rows), _make_offer
    )
    found.providers = (_PROVIDER,)
    return found


def _make_offer(name: str, row: Mapping[str, Any]) -> ListOffer | None:
    if not isinstance(row.get("id"), str):
        raise InvalidRow("id is not a text")
    context = read_count(row, "context_length")
    top = row.get("top_provider")
    most = read_count(top, "max_completion_tokens") if isinstance(top, dict) else None
    pricing, left = _read_pricing(row.get("pricing"))
    return ListOffer(
        name=name,
        provider="openrouter",
        upstream_model_id=name,
        pricing=pricing,
        uncharged=left,
        context_length=context,
        max_completion_tokens=most,
        model=_describe(name, row, context),
    )


def _describe(name: str, row: Mapping[str, Any], context: int | None) -> dict[str, Any]:
    architecture = row.get("architecture")
    if not isinstance(architecture, dict):
        raise InvalidRow("architecture is not an object")
    created, title, permanent = row.get("created"), row.get("name"), row.get("canonical_slug")
    made = describe_model(
        name,
        name=title if isinstance(title, str) else name,
        created=date(1970, 1, 1),
        inputs=read_words(architecture.get("input_modalities")),
        outputs=read_words(architecture.get("output_modalities")),
        context_length=context,
        parameters=read_words(row.get("supported_parameters")),
        canonical_slug=permanent if isinstance(permanent, str) else None,
    )
    made["created"] = created if isinstance(created, int) else 0
    return made


def _read_pricing(pricing: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the rates of a row, and what is left of them."""
    if pricing is None:
        return {}, ()
    if not isinstance(pricing, dict):
        raise InvalidRow("pricing is not an object")
    rates = read_rates(pricing, _RATES)
    if not FREE.keys() <= rates.keys():
        return {}, ()
    left = _settle_drawing(rates)
    # A share that is taken off every rate.
    rates |= read_rates(pricing, {"discount": "discount"})
    overrides = pricing.get("overrides")
    if isinstance(overrides, list) and overrides:
        rates["overrides"] = [_read_override(one) for one in overrides]
    return rates, left


def _settle_drawing(rates: dict[str, Any]) -> tuple[str, ...]:
    """States the rate of a token of a generated picture, which the list names ``image_output``.

    The list does not say what ``image_token`` is beside it: GPT Image 2 has OpenAI's rate of a
    token of a picture in the prompt there, FLUX and Seedream have the same rate twice. The dearer
    one counts, and the other one is returned by its name.
    """
    drawn = {name: rates[name] for name in ("image_output", "image_token") if name in rates}
    if "image_output" not in drawn or Decimal(drawn["image_output"]) >= CHEAPEST_IMAGE:
        return ()
    del rates["image_output"]
    rates["image_token"] = dearest = max(drawn.values(), key=Decimal)
    # The output of a generator is pictures alone, even where a reply does not say so.
    if rates["completion"] == "0":
        rates["completion"] = dearest
    return tuple(f"{name}: {rate}" for name, rate in drawn.items() if rate != dearest)


def _read_override(override: Any) -> dict[str, Any]:
    if not isinstance(override, dict):
        raise InvalidRow("overrides has an item that is not an object")
    limits = {key: override[key] for key in _CONDITIONS if override.get(key) is not None}
    return {**limits, **read_rates(override, _RATES)}
