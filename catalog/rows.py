"""The rows of the catalogue file: their shapes, their checks, and their values in the models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Annotated, Any, Final

import msgspec
from django.db.models import Model

from catalog.abilities import UNSTATED, Abilities, dump, find_problem, read_abilities
from catalog.capabilities import StatedCapabilities, assume_capabilities
from catalog.models import DialectName, LanguageModel, ModelEndpoint, Provider
from catalog.pricing import Price
from catalog.pricing.contract import (
    InvalidPricing,
    Line,
    Lines,
    Pricing,
    read_price,
    render_lines,
    render_pricing,
)
from config.api.text import NOT_STORABLE, iter_texts
from config.egress.addresses import ANYWHERE, EgressPolicy, InvalidURL, parse_base_url
from config.egress.rules import MOST_SECONDS, TimeLimits
from config.models import time_columns

# The latest time, in seconds: in the year 5138. A present time in milliseconds is greater, so it is
# refused.
LATEST: Final = 10**11

_ANY_POLICY: Final = EgressPolicy(allowed_networks=ANYWHERE)

# A text without control characters, which the console refuses too.
_PLAIN: Final = r"^[^\x00-\x1f\x7f-\x9f]*\Z"
_PATH: Final = r"^[^/\s\x00-\x1f\x7f-\x9f]+/[^\s\x00-\x1f\x7f-\x9f]+\Z"
_ADDRESS: Final = r"^https?://[^\s\x00-\x1f\x7f-\x9f]+\Z"
_LETTERS: Final = r"^[A-Z]{2}\Z"
# What a person reads who has entered something else.
_SAYINGS: Final = {
    repr(_PATH): "Must be AUTHOR/NAME, without spaces.",
    repr(_ADDRESS): "Must begin with https:// or http://, and have no spaces.",
    repr(_LETTERS): "Must be the two capital letters of a country, such as US.",
}

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=_PLAIN)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=_PLAIN)]
_Modality = Annotated[str, msgspec.Meta(min_length=1, max_length=32, pattern=_PLAIN)]
Source = Annotated[str, msgspec.Meta(max_length=255, pattern=_PLAIN)]
_Code = Annotated[str, msgspec.Meta(min_length=1, max_length=16, pattern=_PLAIN)]
_Path = Annotated[str, msgspec.Meta(pattern=_PATH, max_length=255)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
_Limit = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Seconds = Annotated[int, msgspec.Meta(ge=1, le=MOST_SECONDS)]
_Country = Annotated[str, msgspec.Meta(pattern=_LETTERS)]
_URL = Annotated[str, msgspec.Meta(pattern=_ADDRESS, max_length=2048)]


class _DataPolicy(msgspec.Struct, forbid_unknown_fields=True):
    training: bool
    retains_prompts: bool


class ProviderRow(msgspec.Struct, forbid_unknown_fields=True):
    slug: _Text
    name: _Text
    dialect: _Text
    base_url: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)] | None
    data_policy: _DataPolicy
    datacenters: list[_Country] | None = None
    headquarters: _Country | None = None
    privacy_policy_url: _URL | None = None
    terms_of_service_url: _URL | None = None
    status_page_url: _URL | None = None
    # An import without these members leaves what an operator has set.
    keyless: bool | msgspec.UnsetType = msgspec.UNSET
    requests_per_minute: _Limit | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_minute: _Limit | msgspec.UnsetType | None = msgspec.UNSET


class _Architecture(msgspec.Struct, forbid_unknown_fields=True):
    input_modalities: list[_Modality]
    output_modalities: list[_Modality]
    modality: _Text | None
    tokenizer: _Word | None = None
    instruct_type: _Word | None = None


class ModelRow(msgspec.Struct, forbid_unknown_fields=True):
    id: _Path
    canonical_slug: _Path
    name: _Text
    created: Annotated[int, msgspec.Meta(ge=0, le=LATEST)]
    context_length: _Count | None
    architecture: _Architecture
    description: Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*\Z")] = ""
    supported_parameters: list[_Word] = []
    default_parameters: dict[str, Any] | None = None
    expiration_date: date | None = None
    knowledge_cutoff: date | None = None
    supported_voices: list[_Text] | None = None
    per_request_limits: dict[str, Any] | None = None
    # An import without this member leaves the capabilities as they are.
    capabilities: StatedCapabilities | msgspec.UnsetType = msgspec.UNSET


class Timeouts(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of time of one endpoint; see :class:`TimeLimits`."""

    connect: _Seconds | None = None
    headers: _Seconds | None = None
    first_event: _Seconds | None = None
    idle: _Seconds | None = None
    total: _Seconds | None = None


class EndpointRow(msgspec.Struct, forbid_unknown_fields=True):
    model: _Text
    provider: _Text
    upstream_model_id: _Text
    pricing: Pricing
    lines: Lines | msgspec.UnsetType | None = msgspec.UNSET
    context_length: _Count | None = None
    max_completion_tokens: _Count | None = None
    quantization: _Code | None = None
    is_moderated: bool = False
    region: _Code = "global"
    zdr: bool = False
    supported_parameters: list[_Word] = []
    # An import without this member leaves the limits as an operator has set them.
    timeouts: Timeouts | msgspec.UnsetType | None = msgspec.UNSET
    # An import without this member leaves the abilities as they are.
    abilities: Abilities | msgspec.UnsetType | None = msgspec.UNSET
    # An import without these members writes the file's own to the rows that change.
    source: Source | msgspec.UnsetType = msgspec.UNSET
    as_of: date | msgspec.UnsetType | None = msgspec.UNSET


def endpoint_key(row: EndpointRow) -> tuple[str, str, str, str]:
    return row.model, row.provider, row.upstream_model_id, row.region


def find_provider_problems(row: ProviderRow, policy: EgressPolicy) -> list[str]:
    if row.dialect not in DialectName.values:
        return [f"dialect {row.dialect!r} is none of {', '.join(DialectName.values)}"]
    if DialectName(row.dialect).has_url_in_credential:
        if row.keyless is True:
            return ["keyless must not be true: this dialect takes its URL from the credential"]
        if row.base_url is not None:
            return ["base_url must be null: this dialect takes its URL from the credential"]
        return []
    if row.base_url is None:
        return ["base_url is required for this dialect"]
    try:
        parse_base_url(row.base_url, policy=policy, require_https=False)
    except InvalidURL as exc:
        return [f"base_url: {exc}"]
    return []


def find_model_problems(row: ModelRow) -> list[str]:
    return [
        f"{name}: must not contain NUL"
        for name in ("default_parameters", "per_request_limits")
        if any(NOT_STORABLE.search(text) for text in iter_texts(getattr(row, name)))
    ]


def find_endpoint_problems(row: EndpointRow) -> list[str]:
    try:
        price_of(row)
    except InvalidPricing as exc:
        return [f"{path}: {text}" for path, text in exc.problems]
    problem = find_problem(row.abilities or UNSTATED, length=row.context_length)
    return [] if problem is None else [f"abilities.{problem}"]


def price_of(row: EndpointRow) -> Price:
    """Returns the price of a row; raises :class:`InvalidPricing`."""
    return read_price(row.pricing, row.lines or ())


# The members of a row that are columns of the same name, in the order in which changes are shown.
_PROVIDER: Final = ("slug", "name", "dialect")
_PROVIDER_FACTS: Final = (
    "headquarters", "privacy_policy_url", "terms_of_service_url", "status_page_url",
)  # fmt: skip
_MODEL: Final = ("canonical_slug", "name", "created", "description", "context_length")
_MODEL_FACTS: Final = (
    "supported_parameters", "default_parameters", "per_request_limits", "supported_voices",
    "expiration_date", "knowledge_cutoff",
)  # fmt: skip
_ARCHITECTURE: Final = _Architecture.__struct_fields__
_ENDPOINT: Final = (
    "context_length", "max_completion_tokens", "quantization", "is_moderated", "zdr",
    "supported_parameters",
)  # fmt: skip


def _types_of(shape: type[msgspec.Struct], names: Iterable[str]) -> dict[str, Any]:
    types = {each.name: each.type for each in msgspec.structs.fields(shape)}
    return {name: types[name] for name in names}


_LIMITS: Final = ("requests_per_minute", "tokens_per_minute")
_COLUMNS: Final[Mapping[type[Model], Mapping[str, Any]]] = {
    Provider: _types_of(ProviderRow, (*_PROVIDER, *_PROVIDER_FACTS, "datacenters", *_LIMITS)),
    LanguageModel: {
        "slug": _Path,
        **_types_of(ModelRow, (*_MODEL, *_MODEL_FACTS)),
        **_types_of(_Architecture, _ARCHITECTURE),
    },
    ModelEndpoint: _types_of(EndpointRow, ("upstream_model_id", "region", *_ENDPOINT)),
}


def find_column_problem(model: type[Model], column: str, value: Any) -> str:
    """Returns why no row of a file could have a value in a column; empty if one could."""
    try:
        msgspec.convert(value, _COLUMNS[model].get(column, Any))
    except msgspec.ValidationError as exc:
        text = str(exc)
        return next((said for pattern, said in _SAYINGS.items() if pattern in text), text)
    return ""


def _take(holder: Any, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(holder, name) for name in names}


def provider_values(row: ProviderRow) -> dict[str, Any]:
    base_url = row.base_url
    if base_url is not None:
        # It was checked; the spelling does not depend on what is allowed.
        base_url = parse_base_url(base_url, policy=_ANY_POLICY, require_https=False).text
    limits = {
        "is_keyless": row.keyless,
        "requests_per_minute": row.requests_per_minute,
        "tokens_per_minute": row.tokens_per_minute,
    }
    return {
        **{name: limit for name, limit in limits.items() if limit is not msgspec.UNSET},
        **_take(row, _PROVIDER),
        "base_url": base_url,
        "trains_on_prompts": row.data_policy.training,
        "retains_prompts": row.data_policy.retains_prompts,
        "datacenters": row.datacenters or [],
        **_take(row, _PROVIDER_FACTS),
        "is_listed": True,
    }


def endpoint_values(row: EndpointRow) -> dict[str, Any]:
    origin = {"source": row.source, "as_of": row.as_of or None}
    limits = {} if row.timeouts is msgspec.UNSET else time_columns(limits_of(row.timeouts))
    abilities = {}
    if row.abilities is not msgspec.UNSET:
        abilities["abilities"] = dump(row.abilities or UNSTATED)
    own = {} if row.source is msgspec.UNSET else origin
    return {**own, **limits, **abilities, **_take(row, _ENDPOINT), "is_listed": True}


def model_values(row: ModelRow, *, is_new: bool) -> dict[str, Any]:
    """Returns the columns of a model; a new one has capabilities even if the file names none."""
    capabilities = row.capabilities
    if is_new and capabilities is msgspec.UNSET:
        capabilities = assume_capabilities(row.canonical_slug)
    return {
        **({} if capabilities is msgspec.UNSET else msgspec.structs.asdict(capabilities)),
        "slug": row.id,
        **_take(row, _MODEL),
        **_take(row.architecture, _ARCHITECTURE),
        **_take(row, _MODEL_FACTS),
        "is_listed": True,
    }


def provider_row(provider: Provider) -> ProviderRow:
    return ProviderRow(
        **_take(provider, (*_PROVIDER, "base_url", "datacenters", *_PROVIDER_FACTS)),
        data_policy=_DataPolicy(provider.trains_on_prompts, provider.retains_prompts),
        keyless=provider.is_keyless or msgspec.UNSET,
        requests_per_minute=provider.requests_per_minute or msgspec.UNSET,
        tokens_per_minute=provider.tokens_per_minute or msgspec.UNSET,
    )


def model_row(model: LanguageModel) -> ModelRow:
    return ModelRow(
        id=model.slug,
        architecture=_Architecture(**_take(model, _ARCHITECTURE)),
        capabilities=model.capabilities.stated,
        **_take(model, (*_MODEL, *_MODEL_FACTS)),
    )


def endpoint_row(endpoint: ModelEndpoint) -> EndpointRow:
    return EndpointRow(
        model=endpoint.model.canonical_slug,
        provider=endpoint.provider.slug,
        **_take(endpoint, ("upstream_model_id", "region", *_ENDPOINT)),
        **pricing_members(endpoint.price.price),
        timeouts=timeouts_of(endpoint.time_limits),
        abilities=read_abilities(endpoint.abilities) if endpoint.abilities else msgspec.UNSET,
        source=endpoint.source or msgspec.UNSET,
        as_of=endpoint.as_of or msgspec.UNSET,
    )


def limits_of(timeouts: Timeouts | None) -> TimeLimits:
    """Returns the limits that a row states; none for ``None``."""
    return TimeLimits(**({} if timeouts is None else msgspec.structs.asdict(timeouts)))


def timeouts_of(limits: TimeLimits) -> Timeouts | msgspec.UnsetType:
    """Returns the member of a row that states limits; left out if there are none."""
    return Timeouts(*limits) if limits.stated() else msgspec.UNSET


def pricing_members(
    price: Price,
    render: Callable[[Price], dict[str, Any]] = render_pricing,
    shape: type[msgspec.Struct] = Pricing,
) -> dict[str, Any]:
    """Returns the members of a row that state a price; ``pricing`` has the shape."""
    pricing = render(price)
    if price.discount:
        pricing["discount"] = price.discount
    return {
        "pricing": msgspec.convert(pricing, shape),
        "lines": msgspec.convert(render_lines(price), list[Line]) or msgspec.UNSET,
    }
