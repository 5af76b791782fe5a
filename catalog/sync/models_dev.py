"""The ``api.json`` of models.dev: providers with their models, in USD per million tokens.

https://models.dev describes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, Final, NamedTuple

from catalog.sync.documents import InvalidRow
from catalog.sync.offers import (
    Offer,
    PriceList,
    describe_model,
    read_count,
    read_day,
    read_offers,
    read_rate,
    read_words,
)


class _Provider(NamedTuple):
    """A provider of the list: our slug, and the author of its models where it made them."""

    slug: str
    author: str = ""


_PROVIDERS: Final[Mapping[str, _Provider]] = {
    "openai": _Provider("openai", "openai"),
    "anthropic": _Provider("anthropic", "anthropic"),
    "google": _Provider("google-ai-studio", "google"),
    "google-vertex": _Provider("google-vertex"),
    "google-vertex-anthropic": _Provider("google-vertex"),
    "azure": _Provider("azure"),
    "amazon-bedrock": _Provider("amazon-bedrock"),
    "mistral": _Provider("mistral", "mistralai"),
    "cohere": _Provider("cohere", "cohere"),
    "deepseek": _Provider("deepseek", "deepseek"),
    "xai": _Provider("xai", "x-ai"),
    "moonshotai": _Provider("moonshotai", "moonshotai"),
    "zai": _Provider("z-ai", "z-ai"),
    "minimax": _Provider("minimax", "minimax"),
    "perplexity": _Provider("perplexity"),
    "groq": _Provider("groq"),
    "cerebras": _Provider("cerebras"),
    "togetherai": _Provider("together"),
    "fireworks-ai": _Provider("fireworks"),
    "deepinfra": _Provider("deepinfra"),
    "nebius": _Provider("nebius"),
}
_RATES: Final[Mapping[str, str]] = {
    "input": "prompt",
    "output": "completion",
    "cache_read": "input_cache_read",
    "cache_write": "input_cache_write",
    "reasoning": "internal_reasoning",
    "input_audio": "audio",
    "output_audio": "audio_output",
}
_MODALITIES: Final = {"text": "text", "image": "image", "audio": "audio", "video": "video",
                      "pdf": "file"}  # fmt: skip
_MILLION: Final = 6


def read_list(document: Mapping[str, Any], as_of: date) -> PriceList:
    """Returns the offers of the list."""

    def make(name: str, row: Mapping[str, Any]) -> Offer | None:
        return _make_offer(name, row, as_of)

    return read_offers(_list_models(document), make)


def _list_models(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the models of all providers under ``provider:model``; skips what is no provider."""
    for provider, members in document.items():
        models = members.get("models") if isinstance(members, dict) else None
        if isinstance(models, dict):
            yield from ((f"{provider}:{name}", row) for name, row in models.items())


def _make_offer(name: str, row: Mapping[str, Any], as_of: date) -> Offer | None:
    place, _, upstream = name.partition(":")
    provider = _PROVIDERS.get(place)
    if provider is None:
        return None
    limit = row.get("limit")
    limits: Mapping[str, Any] = limit if isinstance(limit, dict) else {}
    cost = row.get("cost")
    context = read_count(limits, "context")
    return Offer(
        name=name,
        provider=provider.slug,
        upstream_model_id=upstream,
        pricing=_read_pricing(cost) if isinstance(cost, dict) else {},
        context_length=context,
        max_completion_tokens=read_count(limits, "output"),
        model=_describe(provider, upstream, row, context, as_of),
    )


def _describe(
    provider: _Provider, upstream: str, row: Mapping[str, Any], context: int | None, as_of: date
) -> dict[str, Any] | None:
    if not provider.author or "/" in upstream or row.get("status") == "deprecated":
        return None
    modalities = row.get("modalities")
    if not isinstance(modalities, dict):
        return None
    inputs, outputs = (
        [_MODALITIES[word] for word in read_words(modalities.get(side)) if word in _MODALITIES]
        for side in ("input", "output")
    )
    title = row.get("name")
    flags = {"tool_call": ("tools", "tool_choice"), "reasoning": ("reasoning", "include_reasoning"),
             "structured_output": ("response_format", "structured_outputs"),
             "temperature": ("temperature",)}  # fmt: skip
    parameters = [name for flag, names in flags.items() if row.get(flag) is True for name in names]
    return describe_model(
        f"{provider.author}/{upstream.lower()}",
        name=title if isinstance(title, str) else upstream,
        created=read_day(row.get("release_date")) or as_of,
        inputs=inputs,
        outputs=outputs,
        context_length=context,
        parameters=["max_tokens", *parameters],
    )


def _read_pricing(cost: Mapping[str, Any]) -> dict[str, Any]:
    rates: dict[str, Any] = _read_rates(cost)
    if "prompt" not in rates and "completion" not in rates:
        return {}
    pricing = {"prompt": "0", "completion": "0", **rates}
    overrides = list(_read_tiers(cost))
    if overrides:
        pricing["overrides"] = overrides
    return pricing


def _read_rates(cost: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: rate
        for key, name in _RATES.items()
        if (rate := read_rate(cost, key, per=_MILLION)) is not None
        and (rate != "0" or name in ("prompt", "completion"))
    }


def _read_tiers(cost: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the rates for long prompts; the older form names one size alone."""
    tiers, above = cost.get("tiers"), cost.get("context_over_200k")
    if isinstance(tiers, list) and tiers:
        for tier in tiers:
            bound = tier.get("tier") if isinstance(tier, dict) else None
            size = bound.get("size") if isinstance(bound, dict) else None
            if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
                raise InvalidRow("tiers has a tier without a size")
            if bound is not None and bound.get("type") == "context":
                yield {"min_prompt_tokens": size, **_read_overridden(tier)}
    elif isinstance(above, dict):
        yield {"min_prompt_tokens": 200_000, **_read_overridden(above)}


def _read_overridden(cost: Mapping[str, Any]) -> dict[str, str]:
    """Returns the rates that an override may have."""
    left_out = ("internal_reasoning", "audio_output")
    return {name: rate for name, rate in _read_rates(cost).items() if name not in left_out}
