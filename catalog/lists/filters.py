"""The query parameters of the model lists, and the conditions on models that they set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from django.core.exceptions import ValidationError

from accounts.models import Region
from catalog.lists.listing import SORTS, CatalogueModel, Criteria, DecimalRange
from catalog.models import LanguageModel
from config.api.filters import (
    ChoiceFilter,
    DecimalFilter,
    IntegerFilter,
    ListFilter,
    StrictFilter,
    StrictFilterSet,
    TextFilter,
)
from config.api.params import TextParameter
from config.clocks.clock import clock

OUTPUT_MODALITIES: Final = (
    "text", "image", "embeddings", "audio", "video", "rerank", "speech", "transcription",
)  # fmt: skip
INPUT_MODALITIES: Final = ("text", "image", "file", "audio", "video")
CATEGORIES: Final = (
    "programming", "roleplay", "marketing", "marketing/seo", "technology", "science",
    "translation", "legal", "finance", "health", "trivia", "academia",
)  # fmt: skip
REGIONS: Final = {"eu": Region.EUROPE, "us": Region.US}
_MOST_DAYS: Final = 100_000
_PER_MILLION: Final = -6
# The inputs of a model of which nobody has stated any.
_UNSTATED: Final = frozenset(("text",))
_NOT_RECORDED: Final = "The catalogue does not record this, so the filtered list is empty."
_UNRECORDED: Final = (
    "category", "distillable", "min_intelligence_index", "max_intelligence_index",
    "min_coding_index", "max_coding_index", "min_agentic_index", "max_agentic_index",
    "min_tool_success_rate", "max_tool_success_rate",
)  # fmt: skip

Condition = Callable[[CatalogueModel], bool]


class _FamilyParameter(TextParameter):
    """A text that is not empty."""

    schema = {**TextParameter.schema, "minLength": 1}

    def parse(self, text: str) -> str:
        if not text:
            raise ValidationError("Must not be empty.")
        return super().parse(text)


class FamilyFilter(StrictFilter):
    field_class = _FamilyParameter


class CatalogueFilters(StrictFilterSet):
    """The choice between the models that the caller can call and the whole catalogue."""

    all = ChoiceFilter(
        choices=("true",),
        help_text="Extension: lists the catalogue, also what the caller has no credential for.",
    )

    class Meta:
        model = LanguageModel
        fields = ()


class OutputFilters(CatalogueFilters):
    """The filter that every list of models by their outputs has."""

    output_modalities = ListFilter(
        words=(*OUTPUT_MODALITIES, "all"),
        help_text=f"A comma list of {', '.join(OUTPUT_MODALITIES)}, or `all`. Default `text`.",
    )


class SortedFilters(OutputFilters):
    """The filter and the order of a caller's own models."""

    sort = ChoiceFilter(
        choices=SORTS,
        help_text=(
            "Newest first when absent. Models that cannot be ranked go last: models without "
            "traffic, and, as the catalogue records no benchmarks, all models in an order by one."
        ),
    )


class ModelFilters(SortedFilters):
    """Every filter of the public list."""

    input_modalities = ListFilter(
        words=INPUT_MODALITIES,
        help_text=f"A comma list of {', '.join(INPUT_MODALITIES)}; a model must accept all of it.",
    )
    q = TextFilter(help_text="Part of the name or the slug, in any case.")
    supported_parameters = ListFilter(help_text="A comma list; a model must support all of it.")
    context = IntegerFilter(help_text="The smallest context length, in tokens.")
    min_price = DecimalFilter(help_text="The lowest prompt price, in USD per million tokens.")
    max_price = DecimalFilter(help_text="The highest prompt price, in USD per million tokens.")
    min_output_price = DecimalFilter(
        help_text="The lowest completion price, in USD per million tokens."
    )
    max_output_price = DecimalFilter(
        help_text="The highest completion price, in USD per million tokens."
    )
    arch = FamilyFilter(help_text="A model family, by the beginning of its tokenizer's name.")
    model_authors = ListFilter(help_text="A comma list of author slugs.")
    providers = ListFilter(
        help_text="A comma list of provider slugs or names; one must serve the model, and where "
        "`zdr` or `region` is sent, under those terms.",
    )
    zdr = ChoiceFilter(
        choices=("true",), help_text="Only models with an endpoint that keeps no data."
    )
    region = ChoiceFilter(
        choices=tuple(REGIONS), help_text="Only models with an endpoint in this region."
    )
    min_age_days = IntegerFilter(
        maximum=_MOST_DAYS, help_text="The lowest age, in whole days since the model was published."
    )
    max_age_days = IntegerFilter(
        maximum=_MOST_DAYS,
        help_text="The highest age, in whole days since the model was published.",
    )
    category = ChoiceFilter(choices=CATEGORIES, help_text=_NOT_RECORDED)
    distillable = ChoiceFilter(choices=("true", "false"), help_text=_NOT_RECORDED)
    min_intelligence_index = DecimalFilter(help_text=f"The lowest value. {_NOT_RECORDED}")
    max_intelligence_index = DecimalFilter(help_text=f"The highest value. {_NOT_RECORDED}")
    min_coding_index = DecimalFilter(help_text=f"The lowest value. {_NOT_RECORDED}")
    max_coding_index = DecimalFilter(help_text=f"The highest value. {_NOT_RECORDED}")
    min_agentic_index = DecimalFilter(help_text=f"The lowest value. {_NOT_RECORDED}")
    max_agentic_index = DecimalFilter(help_text=f"The highest value. {_NOT_RECORDED}")
    min_tool_success_rate = DecimalFilter(maximum=1, help_text=f"The lowest value. {_NOT_RECORDED}")
    max_tool_success_rate = DecimalFilter(
        maximum=1, help_text=f"The highest value. {_NOT_RECORDED}"
    )


def criteria_of(values: Mapping[str, Any]) -> Criteria:
    """Returns the criteria that the values of a filter set describe.

    A filter that the set does not have counts as absent.
    """
    get = values.get
    providers, region = get("providers"), get("region")
    outputs = get("output_modalities") or ("text",)
    return Criteria(
        models=tuple(_conditions(values)),
        outputs=None if "all" in outputs else frozenset(outputs),
        providers=None if providers is None else frozenset(map(str.lower, providers)),
        zdr=get("zdr") is not None,
        region=None if region is None else REGIONS[region],
        prompt_price=DecimalRange(get("min_price"), get("max_price")).scale(_PER_MILLION),
        completion_price=DecimalRange(get("min_output_price"), get("max_output_price")).scale(
            _PER_MILLION
        ),
        is_unknown=any(get(name) is not None for name in _UNRECORDED),
    )


def _conditions(values: Mapping[str, Any]) -> Iterable[Condition]:
    """Yields the conditions on a model itself, without regard to its endpoints."""
    get = values.get
    if (text := get("q")) is not None:
        part = text.casefold()
        yield lambda model: part in model.folded_texts
    if (parameters := get("supported_parameters")) is not None:
        yield lambda model: model.supported_parameters.issuperset(parameters)
    if (inputs := get("input_modalities")) is not None:
        yield lambda model: (model.input_modalities or _UNSTATED).issuperset(inputs)
    if (names := get("model_authors")) is not None:
        authors = tuple(f"{name.casefold()}/" for name in names)
        yield lambda model: model.folded_slug.startswith(authors)
    if (family := get("arch")) is not None:
        beginning = family.casefold()
        yield lambda model: model.folded_tokenizer.startswith(beginning)
    if (least := get("context")) is not None:
        yield lambda model: model.context_length is not None and model.context_length >= least
    if (days := get("min_age_days")) is not None:
        latest = _days_ago(days)
        yield lambda model: model.created <= latest
    if (days := get("max_age_days")) is not None:
        earliest = _days_ago(days)
        yield lambda model: model.created >= earliest


def _days_ago(number: int) -> int:
    return int((clock.now() - timedelta(days=number)).timestamp())
