"""The query parameters of the model lists: what they mean, how they are read and documented."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from typing import Final

from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from accounts.models import Region
from catalog.lists.listing import SORTS, Entry, Range, Wanted
from config.api.params import query_choice, query_decimal, query_integer, query_list, query_text

OUTPUT_MODALITIES: Final = (
    "text", "image", "embeddings", "audio", "video", "rerank", "speech", "transcription",
)  # fmt: skip
INPUT_MODALITIES: Final = ("text", "image", "file", "audio", "video")
CATEGORIES: Final = (
    "programming", "roleplay", "marketing", "marketing/seo", "technology", "science",
    "translation", "legal", "finance", "health", "trivia", "academia",
)  # fmt: skip
REGIONS: Final = {"eu": Region.EUROPE, "us": Region.US}
_BENCHMARKS: Final = ("intelligence_index", "coding_index", "agentic_index")
_TOOL_SUCCESS: Final = "tool_success_rate"
_MOST_DAYS: Final = 100_000
_PER_MILLION: Final = -6
_NOT_RECORDED: Final = "The catalogue does not record this, so a list so filtered is empty."

Condition = Callable[[Entry], bool]


def _bounds(name: str, kind: type, what: str) -> tuple[OpenApiParameter, OpenApiParameter]:
    return (
        OpenApiParameter(f"min_{name}", kind, description=f"At least: {what}"),
        OpenApiParameter(f"max_{name}", kind, description=f"At most: {what}"),
    )


OUTPUT_MODALITIES_PARAMETER: Final = OpenApiParameter(
    "output_modalities",
    str,
    description=f"A comma list of {', '.join(OUTPUT_MODALITIES)}, or `all`. Default `text`.",
)
SORT_PARAMETER: Final = OpenApiParameter(
    "sort",
    str,
    enum=SORTS,
    description=(
        "Newest first when absent. What cannot be ranked goes last: models without traffic, and, "
        "as the catalogue records no benchmarks, all models in an order by one."
    ),
)
FILTER_PARAMETERS: Final = (
    OUTPUT_MODALITIES_PARAMETER,
    OpenApiParameter(
        "input_modalities",
        str,
        description=f"A comma list of {', '.join(INPUT_MODALITIES)}; a model must take all of it.",
    ),
    OpenApiParameter("q", str, description="Part of the name or the slug, in any case."),
    OpenApiParameter(
        "supported_parameters", str, description="A comma list; a model must support all of it."
    ),
    OpenApiParameter("context", int, description="The least context length, in tokens."),
    *_bounds("price", float, "the prompt price, in USD per million tokens."),
    *_bounds("output_price", float, "the completion price, in USD per million tokens."),
    OpenApiParameter(
        "arch", str, description="A model family, by the beginning of its tokenizer's name."
    ),
    OpenApiParameter("model_authors", str, description="A comma list of author slugs."),
    OpenApiParameter(
        "providers",
        str,
        description="A comma list of provider slugs or names; one must serve the model, and where "
        "`zdr` or `region` is sent, under those terms.",
    ),
    OpenApiParameter(
        "zdr", str, enum=("true",), description="Only models with an endpoint that keeps no data."
    ),
    OpenApiParameter(
        "region", str, enum=tuple(REGIONS), description="Only models with an endpoint there."
    ),
    *_bounds("age_days", int, "whole days since the model was published."),
    OpenApiParameter("category", str, enum=CATEGORIES, description=_NOT_RECORDED),
    OpenApiParameter("distillable", str, enum=("true", "false"), description=_NOT_RECORDED),
    *(parameter for name in _BENCHMARKS for parameter in _bounds(name, float, _NOT_RECORDED)),
    *_bounds(_TOOL_SUCCESS, float, _NOT_RECORDED),
)


def wanted_models(request: Request) -> Wanted:
    """Reads every filter of the public list; 400 for one that is malformed."""
    unknown = [
        query_choice(request, "category", CATEGORIES),
        query_choice(request, "distillable", ("true", "false")),
        *_range(request, *_BENCHMARKS),
        *_range(request, _TOOL_SUCCESS, maximum=1),
    ]
    region = query_choice(request, "region", REGIONS)
    providers = query_list(request, "providers")
    return Wanted(
        models=(*_conditions(request), *output_modalities(request)),
        providers=None if providers is None else frozenset(map(str.lower, providers)),
        zdr=query_choice(request, "zdr", ("true",)) is not None,
        region=None if region is None else REGIONS[region],
        prompt_price=Range(*_range(request, "price")).scaled(_PER_MILLION),
        completion_price=Range(*_range(request, "output_price")).scaled(_PER_MILLION),
        is_unknown=any(value is not None for value in unknown),
    )


def output_modalities(request: Request) -> tuple[Condition, ...]:
    """Reads the wanted output modalities, any of which will do; without them, text."""
    names = query_list(request, "output_modalities", choices=(*OUTPUT_MODALITIES, "all"))
    if names is not None and "all" in names:
        return ()
    return (makes_any_of(("text",) if names is None else names),)


def sort_order(request: Request) -> str | None:
    sort: str | None = query_choice(request, "sort", SORTS)
    return sort


def makes_any_of(names: Iterable[str]) -> Condition:
    """Returns the condition that a model makes one of these modalities."""
    wanted = frozenset(names)
    return lambda entry: not wanted.isdisjoint(entry.output_modalities)


def _conditions(request: Request) -> list[Condition]:
    """Reads the conditions on what a model is, whoever serves it."""
    found: list[Condition] = []
    if (text := query_text(request, "q")) is not None:
        part = text.casefold()
        found.append(lambda entry: part in entry.folded_texts)
    if (parameters := query_list(request, "supported_parameters")) is not None:
        found.append(lambda entry: entry.supported_parameters.issuperset(parameters))
    modalities = query_list(request, "input_modalities", choices=INPUT_MODALITIES)
    if modalities is not None:
        found.append(lambda entry: entry.input_modalities.issuperset(modalities))
    if (names := query_list(request, "model_authors")) is not None:
        authors = tuple(f"{name.casefold()}/" for name in names)
        found.append(lambda entry: entry.folded_slug.startswith(authors))
    if (arch := query_text(request, "arch")) is not None:
        if not arch:
            raise ValidationError({"arch": ["Must not be empty."]})
        beginning = arch.casefold()
        found.append(lambda entry: entry.folded_tokenizer.startswith(beginning))
    if (least := query_integer(request, "context", minimum=0)) is not None:
        found.append(
            lambda entry: entry.context_length is not None and entry.context_length >= least
        )
    days = query_integer(request, "min_age_days", minimum=0, maximum=_MOST_DAYS)
    if days is not None:
        latest = _days_ago(days)
        found.append(lambda entry: entry.created <= latest)
    days = query_integer(request, "max_age_days", minimum=0, maximum=_MOST_DAYS)
    if days is not None:
        earliest = _days_ago(days)
        found.append(lambda entry: entry.created >= earliest)
    return found


def _days_ago(number: int) -> int:
    return int((timezone.now() - timedelta(days=number)).timestamp())


def _range(request: Request, *names: str, maximum: int | None = None) -> Iterable[Decimal | None]:
    return [
        query_decimal(request, f"{side}_{name}", maximum=maximum)
        for name in names
        for side in ("min", "max")
    ]
