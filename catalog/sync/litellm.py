"""The price map of LiteLLM: ``model_prices_and_context_window.json``, as its wheel carries it.

https://github.com/BerriAI/litellm publishes the map and its JSON schema. A key names a model, often
with its provider; all rates are USD per unit. Rates of batches, priority, flex and other tiers are
of other endpoints and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from catalog.dialects.shared.searches import WEB_SEARCH_OPTIONS
from catalog.pricing.contract import CHEAPEST_IMAGE
from catalog.pricing.rules import DAYS
from catalog.sync.documents import InvalidRow
from catalog.sync.offers import (
    FREE,
    ListOffer,
    PriceList,
    describe_model,
    read_count,
    read_day,
    read_offers,
    read_rate,
    read_rates,
)
from config.api.text import plain_digits


class _Provider(NamedTuple):
    """A provider of the map: our slug, the prefixes of its keys, the author of its models.

    ``adds`` is put before a name; ``searches_always`` says that each request pays one search, and
    ``usual_search`` is the size of a search that a request names none for.
    ``grounds_requests`` says that a request pays once for all its searches, unless its row names
    another unit. ``cached`` is the share of the prompt's rate that a cached token costs where a row
    does not state its rate; 0 where such a token costs as much as the others.
    """

    slug: str
    prefixes: tuple[str, ...] = ()
    author: str = ""
    adds: str = ""
    searches_always: bool = False
    usual_search: str = "medium"
    grounds_requests: bool = False
    cached: Decimal = Decimal(0)


_GOOGLE: Final = _Provider("google-vertex", ("vertex_ai/",), adds="google/", grounds_requests=True)
_OTHERS_AT_VERTEX: Final = (
    "vertex_ai-anthropic_models", "vertex_ai-mistral_models", "vertex_ai-llama_models",
    "vertex_ai-openai_models", "vertex_ai-deepseek_models", "vertex_ai-qwen_models",
    "vertex_ai-moonshot_models", "vertex_ai-zai_models",
)  # fmt: skip
PROVIDERS: Final[Mapping[str, _Provider]] = {
    "openai": _Provider("openai", (), "openai"),
    "text-completion-openai": _Provider("openai", (), "openai"),
    "anthropic": _Provider("anthropic", (), "anthropic"),
    "gemini": _Provider("google-ai-studio", ("gemini/",), "google", grounds_requests=True),
    "azure": _Provider("azure", ("azure/",)),
    "azure_ai": _Provider("azure", ("azure_ai/",)),
    "bedrock": _Provider("amazon-bedrock"),
    "bedrock_converse": _Provider("amazon-bedrock"),
    "vertex_ai": _GOOGLE,
    "vertex_ai-language-models": _GOOGLE,
    **dict.fromkeys(_OTHERS_AT_VERTEX, _Provider("google-vertex", ("vertex_ai/",))),
    "mistral": _Provider("mistral", ("mistral/",), "mistralai"),
    "cohere": _Provider("cohere", ("cohere/",), "cohere"),
    "cohere_chat": _Provider("cohere", (), "cohere"),
    "deepseek": _Provider("deepseek", ("deepseek/",), "deepseek"),
    "xai": _Provider("xai", ("xai/",), "x-ai"),
    "voyage": _Provider("voyageai", ("voyage/",), "voyageai"),
    "moonshot": _Provider("moonshotai", ("moonshot/",), "moonshotai"),
    "zai": _Provider("z-ai", ("zai/",), "z-ai"),
    "minimax": _Provider("minimax", ("minimax/",), "minimax"),
    "perplexity": _Provider(
        "perplexity", ("perplexity/",), searches_always=True, usual_search="low"
    ),
    "groq": _Provider("groq", ("groq/",)),
    "cerebras": _Provider("cerebras", ("cerebras/",)),
    "sambanova": _Provider("sambanova", ("sambanova/",)),
    # https://docs.fireworks.ai/serverless/overview, "Billing".
    "fireworks_ai": _Provider("fireworks", ("fireworks_ai/",), cached=Decimal("0.5")),
    "fireworks_ai-embedding-models": _Provider("fireworks", ("fireworks_ai/",)),
    "together_ai": _Provider("together", ("together_ai/",)),
    "deepinfra": _Provider("deepinfra", ("deepinfra/",)),
    "nebius": _Provider("nebius", ("nebius/",)),
}
_RANKS: Final = {name: rank for rank, name in enumerate(PROVIDERS)}
_NO_MODELS: Final = ("sample_spec", "fallback_generalizations")
# The modes that a route serves, each with the output of its models.
OUTPUTS: Final[Mapping[str, str]] = {
    "chat": "text",
    "responses": "text",
    "completion": "text",
    "embedding": "embeddings",
    "rerank": "rerank",
    "audio_speech": "speech",
    "audio_transcription": "transcription",
    "image_generation": "image",
}
# The mode of models that speak OpenAI's Responses alone, and the providers that serve it. Others
# sell agents or models of other providers by it.
_RESPONSES: Final = "responses"
_RESPONSES_PROVIDERS: Final = frozenset(("openai", "azure"))
# OpenAI's models of chat that search at each request, and whose usage counts no search. Others
# state the price of a search too.
_SEARCHER: Final = re.compile(r"-search-(?:preview|api)\b")
_SEARCH_COST: Final = "search_context_cost_per_query"
_RATES: Final[Mapping[str, str]] = {
    "input_cost_per_token": "prompt",
    "output_cost_per_token": "completion",
    "cache_read_input_token_cost": "input_cache_read",
    "cache_creation_input_token_cost": "input_cache_write",
    "cache_creation_input_token_cost_above_1hr": "input_cache_write_1h",
    "output_cost_per_reasoning_token": "internal_reasoning",
    "input_cost_per_audio_token": "audio",
    "output_cost_per_audio_token": "audio_output",
    "cache_read_input_audio_token_cost": "input_audio_cache",
    "output_cost_per_image_token": "image_token",
    "input_cost_per_image": "image",
    "output_cost_per_image": "image_output",
    "input_cost_per_request": "request",
    "input_cost_per_query": "web_search",
}
_TIERED: Final = (
    "input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost",
    "cache_creation_input_token_cost", "cache_creation_input_token_cost_above_1hr",
)  # fmt: skip
_TIER: Final = re.compile(r"_above_([1-9][0-9]{0,4})k_tokens")
# What a model of Perplexity's that researches bills beside its answer: the rate of each in the map,
# and a bound for an answer, two to five times the counts in Perplexity's example. No field of a
# request bounds it.
_RESEARCH: Final = (
    ({"billable": "search", "variant": "unasked", "unit": "search", "most": 60}, ""),
    (
        {"billable": "prompt", "variant": "citation", "unit": "token", "most": 100_000},
        "citation_cost_per_token",
    ),
    (
        {"billable": "reasoning", "variant": "research", "unit": "token", "most": 400_000},
        "output_cost_per_reasoning_token",
    ),
)
# A generated picture of a size, such as 2K; and the rates of other tiers, which are not ours.
_SIZED: Final = re.compile(r"output_cost_per_image_([0-9.]+K)")
_OTHER_TIER: Final = re.compile(r"_(batches|priority|flex|balanced|ultrafast|decisions)$")
# The rate of a cached token, which some rows of DeepSeek state by this name alone.
_CACHE_HIT: Final = "input_cost_per_token_cache_hit"
# They say the price of tokens or pictures once more, in other units.
_REPEATED: Final = frozenset(
    (_CACHE_HIT, "input_cost_per_pixel", "output_cost_per_pixel",
     "input_cost_per_second", "output_cost_per_second", "cost_per_second",
     "input_cost_per_character", "output_cost_per_character", "input_cost_per_image_token",
     "citation_cost_per_token")
)  # fmt: skip
# Members besides rates of which a price is made.
_MEMBERS: Final = frozenset(
    ("tiered_pricing", "off_peak_pricing", _SEARCH_COST,
     "input_cost_per_second", "output_cost_per_second", "input_cost_per_character",
     "output_cost_per_character", "input_cost_per_image_token", _CACHE_HIT)
)  # fmt: skip
_IMAGE_MODE: Final = "image_generation"
_TOKEN_RATES: Final = ("prompt", "completion", "audio", "audio_output", "image_token")
_WINDOW: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")
_WINDOW_MEMBERS: Final = frozenset(("hours_utc", "weekdays"))
_DAY_NUMBERS: Final[Mapping[str, int]] = {
    word: number for number, day in enumerate(DAYS) for word in (str(number + 1), day, day[:3])
} | {"tues": 1, "thur": 3, "thurs": 3}
# The midnight in UTC of time zones whose clocks never change: elsewhere it depends on the season.
_MIDNIGHTS: Final[Mapping[str, int]] = {
    "": 2400, "UTC": 2400, "Asia/Shanghai": 1600, "Asia/Singapore": 1600, "Asia/Tokyo": 1500,
    "Asia/Seoul": 1500,
}  # fmt: skip
_PARAMETERS: Final[Mapping[str, tuple[str, ...]]] = {
    "supports_function_calling": ("tools", "tool_choice"),
    "supports_response_schema": ("response_format", "structured_outputs"),
    "supports_reasoning": ("reasoning", "include_reasoning"),
}


def read_list(document: Mapping[str, Any], as_of: date) -> PriceList:
    """Returns the offers of the map."""
    rows = [pair for pair in document.items() if pair[0] not in _NO_MODELS]
    return read_offers(sorted(rows, key=_rank), partial(_make_offer, as_of=as_of))


def _rank(pair: tuple[str, Any]) -> tuple[bool, int]:
    """Returns the rank of a row: of several keys for one endpoint, the lowest counts.

    A key with its provider's name comes before one without, and Azure's before that of Foundry.
    """
    name, row = pair
    kind = row.get("litellm_provider") if isinstance(row, dict) else None
    return "/" not in name, _RANKS.get(kind, 0) if isinstance(kind, str) else 0


def _make_offer(name: str, row: Mapping[str, Any], as_of: date) -> ListOffer | None:
    kind, mode = row.get("litellm_provider"), row.get("mode")
    provider = PROVIDERS.get(kind) if isinstance(kind, str) else None
    output = OUTPUTS.get(mode) if isinstance(mode, str) else None
    # A key of Bedrock may name a region, and one of OpenAI a size of an image.
    if provider is None or output is None or name.startswith(("bedrock/", "ft:")):
        return None
    if mode == _RESPONSES and provider.slug not in _RESPONSES_PROVIDERS:
        return None
    upstream = name
    for prefix in provider.prefixes:
        upstream = upstream.removeprefix(prefix)
    if provider.adds and "/" not in upstream:
        upstream = provider.adds + upstream
    is_searcher = provider.slug in _RESPONSES_PROVIDERS and _SEARCHER.search(upstream) is not None
    if is_searcher:
        provider = provider._replace(searches_always=True)
    pricing, lines, left = _read_pricing(row, provider)
    if is_searcher and "request" not in pricing:
        left.append(_SEARCH_COST)
    is_free = not lines and not _costs(pricing)
    context = read_count(row, "max_input_tokens") or read_count(row, "max_tokens")
    return ListOffer(
        name=name,
        provider=provider.slug,
        upstream_model_id=upstream,
        pricing=pricing,
        lines=lines,
        uncharged=(*left, *_find_uncharged(row, is_free=is_free), *_find_multipliers(row)),
        context_length=context,
        max_completion_tokens=read_count(row, "max_output_tokens") if output == "text" else None,
        model=_describe(provider, upstream, row, output, context, as_of),
        # The map counts the prompt alone, and often repeats it for the completion.
        has_limits=False,
    )


def _describe(
    provider: _Provider,
    upstream: str,
    row: Mapping[str, Any],
    output: str,
    context: int | None,
    as_of: date,
) -> dict[str, Any] | None:
    """Returns a new model's row: only where the provider made the model, and it still runs."""
    ends = read_day(row.get("deprecation_date"))
    if not provider.author or "/" in upstream or (ends is not None and ends <= as_of):
        return None
    audio = output == "transcription"
    inputs = ["audio"] if audio else ["text"]
    inputs += ["image"] if row.get("supports_vision") is True and not audio else []
    inputs += ["file"] if row.get("supports_pdf_input") is True and not audio else []
    parameters = [
        name for flag, names in _PARAMETERS.items() if row.get(flag) is True for name in names
    ]
    parameters += [WEB_SEARCH_OPTIONS] if provider.searches_always else []
    speaks_responses = row.get("mode") == _RESPONSES
    capabilities = {"capabilities": {"native_format": "responses"}} if speaks_responses else {}
    return capabilities | describe_model(
        f"{provider.author}/{upstream.lower()}",
        name=upstream,
        # The map has no dates of publication: the day on which the model was first seen here.
        created=as_of,
        inputs=inputs,
        outputs=[output],
        context_length=context,
        parameters=["max_tokens", *parameters] if output == "text" else parameters,
    )


def _read_pricing(
    row: Mapping[str, Any], provider: _Provider
) -> tuple[dict[str, Any], tuple[dict[str, Any], ...], list[str]]:
    """Returns the pricing of a row, the lines that its keys cannot say, and what is left of it."""
    mode = row.get("mode")
    pricing, longer, left = _read_lengths(row)
    windows, unsaid = _read_windows(row)
    lines: list[dict[str, Any]] = []
    if (rate := _read_search(row, provider)) is not None:
        if provider.searches_always and read_rate(row, "citation_cost_per_token") is not None:
            pricing.pop("internal_reasoning", None)
            lines += _read_research(row, rate)
        elif provider.searches_always:
            pricing["request"] = rate
        elif provider.grounds_requests and row.get("web_search_billing_unit") != "per_query":
            lines.append(
                {"billable": "search", "variant": "request", "unit": "request", "price": rate}
            )
        else:
            pricing["web_search"] = rate
    if (rate := read_rate(row, "input_cost_per_image_token")) not in (None, "0"):
        lines.append({"billable": "prompt", "variant": "image", "unit": "token", "price": rate})
    if not any(pricing.get(name, "0") != "0" for name in _TOKEN_RATES):
        # Beside rates of tokens, these say the same price once more.
        for billable, keys in (
            # The list's own calculator takes the first one that costs something.
            ("second", ("output_cost_per_second", "input_cost_per_second")),
            ("character", ("input_cost_per_character", "output_cost_per_character")),
        ):
            rates = [rate for key in keys if (rate := read_rate(row, key)) not in (None, "0")]
            if rates:
                lines.append({"billable": billable, "unit": billable, "price": rates[0]})
    left += [*_settle_repeats(pricing, mode), *unsaid]
    for key in () if "image_token" in pricing else row:
        if (size := _SIZED.fullmatch(key)) and (rate := read_rate(row, key)) not in (None, "0"):
            if _bills_drawing(pricing, mode):
                left.append(f"{key}: {rate}")
                continue
            lines.append({"billable": "image", "variant": size[1], "unit": "image", "price": rate})
    if provider.cached and mode == "chat" and pricing.get("prompt", "0") != "0":
        rate = plain_digits(Decimal(pricing["prompt"]) * provider.cached)
        pricing.setdefault("input_cache_read", rate)
    if (pricing or lines) and not FREE.keys() <= pricing.keys():
        pricing = {**FREE, **pricing}
    if longer or windows:
        pricing["overrides"] = [*longer, *windows]
    return pricing, tuple(lines), left


def read_stated_price(
    row: Mapping[str, Any],
) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """Returns the pricing and the lines of prices that stand outside of the map.

    Raises :class:`InvalidRow`, also for a price of which something is left.
    """
    pricing, lines, left = _read_pricing(row, PROVIDERS["openai"])
    if left:
        raise InvalidRow(f"cannot be charged: {', '.join(left)}")
    return pricing, lines


def is_price(key: str) -> bool:
    """Returns whether a price is made of a member; those of other tiers and units are none."""
    return _is_rate(key) or key in _MEMBERS or _SIZED.fullmatch(key) is not None


def _is_rate(key: str) -> bool:
    is_tier = _TIER.search(key) is not None and _TIER.sub("", key) in _TIERED
    return is_tier or key in _RATES


def _read_search(row: Mapping[str, Any], provider: _Provider) -> str | None:
    """Returns the rate of a search of the usual size; ``None`` if there is none."""
    search = row.get(_SEARCH_COST)
    if not isinstance(search, dict):
        return None
    rate = read_rate(search, f"search_context_size_{provider.usual_search}")
    return None if rate == "0" else rate


def _read_research(row: Mapping[str, Any], search: str) -> Iterable[dict[str, Any]]:
    """Yields the lines of a model that searches by itself, as often as it likes."""
    for line, key in _RESEARCH:
        rate = read_rate(row, key) if key else search
        if rate not in (None, "0"):
            yield {**line, "price": rate}


def _settle_repeats(pricing: dict[str, Any], mode: Any) -> Iterable[str]:
    """Removes the rates that say another one once more, and states the rate of the whole output.

    Beside a rate of the tokens of an image, that of an image is the same price in other words. Some
    rows of chat state the rate of a token as that of an image. Yields what a generator states
    beside the rate of its tokens, or so low that it may be one.
    """
    key, is_generator = "output_cost_per_image", mode == _IMAGE_MODE
    has_picture = not pricing.keys().isdisjoint(("image_output", "image_token"))
    if is_generator and "image" in pricing and not (has_picture or _bills_drawing(pricing, mode)):
        # The list's own calculator takes it for the price of a generated image.
        pricing["image_output"] = pricing.pop("image")
        key = "input_cost_per_image"
    elif pricing.get("prompt", "0") != "0" and mode != "embedding":
        pricing.pop("image", None)
    rate = pricing.pop("image_output", None)
    if rate is not None and "image_token" not in pricing:
        is_cheap = Decimal(rate) < CHEAPEST_IMAGE
        if is_generator and (is_cheap or _bills_drawing(pricing, mode)):
            yield f"{key}: {rate}"
        else:
            pricing["image_token" if is_cheap else "image_output"] = rate
    # The whole output of such a model is of one kind, even where a reply does not say so.
    if mode == "audio_speech" and "audio_output" in pricing:
        pricing["completion"] = pricing["audio_output"]
    if pricing.get("completion", "0") == "0" and "image_token" in pricing:
        pricing["completion"] = pricing["image_token"]


def _bills_drawing(pricing: Mapping[str, Any], mode: Any) -> bool:
    """Returns whether the answer of a generator of images has a rate by the token."""
    return mode == _IMAGE_MODE and pricing.get("completion", "0") != "0"


def _costs(pricing: Mapping[str, Any]) -> bool:
    return any(rate != "0" for rate in pricing.values())


def _find_uncharged(row: Mapping[str, Any], *, is_free: bool) -> Iterable[str]:
    """Yields the rates that the list states for a use that we cannot charge, each with its name.

    Where nothing else costs anything, a rate in other units says no price once more.
    """
    for key in row:
        if "cost" not in key or _is_rate(key) or (key in _REPEATED and not is_free):
            continue
        if _SIZED.fullmatch(key) or _OTHER_TIER.search(key) or not _is_number(row[key]):
            continue
        if (rate := read_rate(row, key)) not in (None, "0"):
            yield f"{key}: {rate}"


def _find_multipliers(row: Mapping[str, Any]) -> Iterable[str]:
    """Yields the factors by which a region or a speed makes the whole price dearer."""
    named = {key: value for key, value in row.items() if "multiplier" in key}
    stated = row.get("provider_specific_entry")
    nested = stated if isinstance(stated, dict) else {}
    for prefix, factors in (("", named), ("provider_specific_entry.", nested)):
        for key, value in factors.items():
            # Other numbers of a provider have longer names, such as minimax_free_input_images.
            if _is_number(value) and value != 1 and not (prefix and "_" in key):
                yield f"{prefix}{key}: {read_rate(factors, key)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _read_lengths(
    row: Mapping[str, Any],
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Returns the rates of a row, those for longer prompts, and those that its ranges replace.

    A rate beside the ranges counts where they state none.
    """
    rates, tiers = read_rates(row, _RATES), row.get("tiered_pricing")
    if (rate := read_rate(row, _CACHE_HIT)) not in (None, "0"):
        rates.setdefault("input_cache_read", rate)
    if not isinstance(tiers, list) or not tiers:
        return rates, [*_read_tiers(row)], []
    first, longer = _read_ranges(tiers)
    left = [
        f"{key}: {rate}"
        for key in filter(_is_rate, row)
        if (rate := read_rate(row, key)) not in (None, "0")
        and (key not in _RATES or first.get(_RATES[key], rate) != rate)
    ]
    return {**rates, **first}, longer, left


def _read_tiers(row: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yields the rates for prompts above a size, by size."""
    sizes = {
        int(match[1]): match[0]
        for key in row
        if (match := _TIER.search(key)) and key.endswith(match[0])
    }
    for size in sorted(sizes):
        rates = {
            _RATES[key]: rate
            for key in _TIERED
            if (rate := read_rate(row, key + sizes[size])) is not None
        }
        if rates:
            yield {"min_prompt_tokens": size * 1000, **rates}


def _read_ranges(tiers: list[Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the rates of the range of prompt tokens that begins at 0, and those of the others."""
    first: dict[str, Any] | None = None
    longer: list[dict[str, Any]] = []
    for tier in tiers:
        bounds = tier.get("range") if isinstance(tier, dict) else None
        if not isinstance(bounds, list) or not bounds:
            raise InvalidRow("tiered_pricing has a tier without a range")
        start = bounds[0]
        is_number = isinstance(start, int | Decimal) and not isinstance(start, bool)
        # The size is checked before the digits are written out: 1e999999 would have a million.
        if not is_number or not 0 <= start < 10**9 or start != int(start):
            raise InvalidRow("tiered_pricing has a range that is not of tokens")
        rates = read_rates(tier, _RATES)
        if not start:
            first = rates
        else:
            longer.append({"min_prompt_tokens": int(start), **rates})
    if first is None:
        raise InvalidRow("tiered_pricing has no range that begins at 0")
    return first, longer


def _read_windows(row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns the rates for hours of the day in UTC, and what limits the windows that are left out.

    Without a limit that no condition says, such as dates, a window would apply too often.
    """
    off_peak = row.get("off_peak_pricing")
    if not isinstance(off_peak, dict):
        return [], []
    stated = read_rates(off_peak, _RATES)
    rates = {name: rate for name, rate in stated.items() if name != "request"}
    found: list[dict[str, Any]] = []
    unknown: set[str] = set()
    windows: list[Any] = [{name: off_peak.get(name) for name in _WINDOW_MEMBERS}]
    for window in windows + _read_items(off_peak, "windows"):
        if not isinstance(window, dict):
            raise InvalidRow("off_peak_pricing has a window that is not an object")
        limits = window.keys() - _WINDOW_MEMBERS
        unknown |= limits
        if not limits:
            conditions = _read_conditions(window, off_peak.get("weekday_timezone"))
            found += [{**each, **rates} for each in conditions]
    return found, [f"off_peak_pricing.windows.{name}" for name in sorted(unknown)]


def _read_conditions(window: Mapping[str, Any], zone: Any) -> Iterable[dict[str, Any]]:
    """Yields the conditions of a window, whose days are those of a time zone.

    As for the list's own calculator, an unknown day is none: a window without a known one never
    applies.
    """
    words = [str(word).strip().lower() for word in _read_items(window, "weekdays")]
    days = {_DAY_NUMBERS[word] for word in words if word in _DAY_NUMBERS}
    is_daily = window.get("weekdays") is None
    midnight = _MIDNIGHTS.get(zone.strip() if isinstance(zone, str) else "") if days else 2400
    if midnight is None:
        raise InvalidRow("off_peak_pricing has days of a time zone that is not known here")
    hours = window.get("hours_utc")
    for text in [hours] if isinstance(hours, str) else _read_items(window, "hours_utc"):
        match = _WINDOW.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidRow("off_peak_pricing has hours that are not like 04:00-06:00")
        start, end = int(match[1] + match[2]), int(match[3] + match[4])
        for first, last, later in _cut(start, end, midnight) if days or is_daily else ():
            limits = {} if first == last else {"utc_start": first, "utc_end": last}
            named = [DAYS[day] for day in sorted((day - later) % 7 for day in days)]
            yield {**limits, **({"utc_days": named} if days else {})}


def _cut(start: int, end: int, midnight: int) -> list[tuple[int, int, int]]:
    """Returns the parts of a window of times in UTC, cut where the day of another clock begins.

    Each has the number of days by which that clock is ahead of the day in UTC.
    """
    if midnight == 2400:
        return [(start, end, 0)]
    parts = [(start, end)] if start < end else [(0, end), (start, 2400)]
    return [
        (max(first, low), min(last, high), later)
        for low, high, later in ((0, midnight, 0), (midnight, 2400, 1))
        for first, last in parts
        if max(first, low) < min(last, high)
    ]


def _read_items(row: Mapping[str, Any], key: str) -> list[Any]:
    """Returns the items of a list in ``off_peak_pricing``; empty if it is missing."""
    items = row.get(key) or []
    if not isinstance(items, list):
        raise InvalidRow(f"off_peak_pricing has {key} that are not a list")
    return items
