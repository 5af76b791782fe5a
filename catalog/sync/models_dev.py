"""The ``api.json`` of models.dev: providers with their models, in USD per million tokens.

https://models.dev describes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from functools import partial
from typing import Any, Final, NamedTuple

from catalog.sync.documents import InvalidRow
from catalog.sync.offers import (
    FREE,
    ListOffer,
    PriceList,
    describe_model,
    read_count,
    read_day,
    read_offers,
    read_rates,
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
# The list calls an embedding a text; only its family tells the two apart.
_EMBEDDING_FAMILIES: Final = frozenset(
    ("text-embedding", "gemini-embedding", "cohere-embed", "mistral-embed", "codestral-embed",
     "voyage", "bge")
)  # fmt: skip
# OpenAI serves these by Responses alone, and the list seldom states the format (``shape``).
_RESPONSES_FAMILIES: Final = frozenset(
    ("gpt-codex", "gpt-codex-mini", "gpt-codex-spark", "gpt-pro", "o-pro")
)
_RESPONSES: Final = "responses"
_SHAPES: Final = (_RESPONSES, "completions")


def read_list(document: Mapping[str, Any], as_of: date) -> PriceList:
    """Returns the offers of the list."""
    return read_offers(_list_models(document), partial(_make_offer, as_of=as_of))


def _list_models(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the models of all providers under ``provider:model``; skips what is no provider."""
    for provider, members in document.items():
        models = members.get("models") if isinstance(members, dict) else None
        if isinstance(models, dict):
            yield from ((f"{provider}:{name}", row) for name, row in models.items())


def _make_offer(name: str, row: Mapping[str, Any], as_of: date) -> ListOffer | None:
    place, _, upstream = name.partition(":")
    provider = _PROVIDERS.get(place)
    if provider is None:
        return None
    limit = row.get("limit")
    limits: Mapping[str, Any] = limit if isinstance(limit, dict) else {}
    cost = row.get("cost")
    context = read_count(limits, "context")
    pricing = _read_pricing(cost) if isinstance(cost, dict) else {}
    return ListOffer(
        name=name,
        provider=provider.slug,
        upstream_model_id=upstream,
        pricing=pricing,
        context_length=context,
        max_completion_tokens=read_count(limits, "output"),
        model=_describe(provider, upstream, row, context, as_of),
        is_unclear=_is_unclear(provider, row, pricing),
    )


def _is_unclear(provider: _Provider, row: Mapping[str, Any], pricing: Mapping[str, Any]) -> bool:
    """Returns whether the list leaves open what a model serves, or in which format.

    It calls embeddings and transcripts texts, and sells embeddings without a price of the output.
    It knows no speech. Of OpenAI's models it seldom says which are served by Responses alone.
    """
    inputs, outputs = _read_modalities(row)
    if outputs != ["text"]:
        return "text" not in outputs and "audio" in outputs
    if "text" not in inputs:
        return True
    has_skills = row.get("tool_call") is True or row.get("reasoning") is True
    if pricing.get("completion") == "0" != pricing.get("prompt") and not has_skills:
        return True
    return provider.author == "openai" and _read_format(row) is None


def _read_format(row: Mapping[str, Any]) -> str | None:
    """Returns the format in which a model is served; ``None`` if the list does not tell."""
    served = row.get("provider")
    shape = served.get("shape") if isinstance(served, dict) else None
    if shape in _SHAPES:
        return str(shape)
    return _RESPONSES if row.get("family") in _RESPONSES_FAMILIES else None


def _read_modalities(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the modalities of a model as the catalogue names them."""
    stated = row.get("modalities")
    if not isinstance(stated, dict):
        return [], []
    inputs, outputs = (
        [_MODALITIES[word] for word in read_words(stated.get(side)) if word in _MODALITIES]
        for side in ("input", "output")
    )
    if outputs == ["text"]:
        if row.get("family") in _EMBEDDING_FAMILIES:
            outputs = ["embeddings"]
        elif inputs == ["audio"]:
            outputs = ["transcription"]
    return inputs, outputs


def _describe(
    provider: _Provider, upstream: str, row: Mapping[str, Any], context: int | None, as_of: date
) -> dict[str, Any] | None:
    if not provider.author or "/" in upstream or row.get("status") == "deprecated":
        return None
    inputs, outputs = _read_modalities(row)
    if not outputs:
        return None
    title = row.get("name")
    flags = {"tool_call": ("tools", "tool_choice"), "reasoning": ("reasoning", "include_reasoning"),
             "structured_output": ("response_format", "structured_outputs"),
             "temperature": ("temperature",)}  # fmt: skip
    parameters = [name for flag, names in flags.items() if row.get(flag) is True for name in names]
    is_native = provider.author == "openai" and _read_format(row) == _RESPONSES
    capabilities = {"capabilities": {"native_format": _RESPONSES}} if is_native else {}
    return capabilities | describe_model(
        f"{provider.author}/{upstream.lower()}",
        name=title if isinstance(title, str) else upstream,
        created=read_day(row.get("release_date")) or as_of,
        inputs=inputs,
        outputs=outputs,
        context_length=context,
        parameters=["max_tokens", *parameters] if "text" in outputs else [],
    )


def _read_pricing(cost: Mapping[str, Any]) -> dict[str, Any]:
    rates = read_rates(cost, _RATES, per=_MILLION)
    if "prompt" not in rates and "completion" not in rates:
        return {}
    pricing = {**FREE, **rates}
    overrides = list(_read_tiers(cost))
    if overrides:
        pricing["overrides"] = overrides
    return pricing


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
    rates = read_rates(cost, _RATES, per=_MILLION)
    return {name: rate for name, rate in rates.items() if name not in left_out}
