"""The catalogue file: parse it, validate every row, apply it in one transaction."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Final, TypeVar

import msgspec
from django.conf import settings
from django.db import transaction
from django.db.models import CharField, Value
from django.db.models.functions import Cast, Concat
from django.utils import timezone

from catalog.models import Dialect, LanguageModel, ModelEndpoint, PriceVersion, Provider
from catalog.pricing import Price, decimal_text
from config.api.text import NOT_STORABLE
from config.bulk.problems import Problems
from config.bulk.report import Report, RowListener, RowOutcome
from config.egress.addresses import EgressPolicy, InvalidURL, parse_base_url

_Stored = TypeVar("_Stored", Provider, LanguageModel)
_Row = TypeVar("_Row")

KINDS: Final = ("providers", "models", "endpoints")
# In seconds, in the year 5138; the milliseconds of today are more.
LATEST: Final = 10**11
DECIMAL: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,30})?")

# No control characters, which the pages of the console do not take either.
_PLAIN: Final = r"^[^\x00-\x1f\x7f-\x9f]*\Z"
_PATH: Final = r"^[^/\s\x00-\x1f\x7f-\x9f]+/[^\s\x00-\x1f\x7f-\x9f]+\Z"
_ADDRESS: Final = r"^https?://[^\s\x00-\x1f\x7f-\x9f]+\Z"

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=_PLAIN)]
_Word = Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=_PLAIN)]
_Modality = Annotated[str, msgspec.Meta(min_length=1, max_length=32, pattern=_PLAIN)]
_Code = Annotated[str, msgspec.Meta(min_length=1, max_length=16, pattern=_PLAIN)]
_Path = Annotated[str, msgspec.Meta(pattern=_PATH, max_length=255)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
_Country = Annotated[str, msgspec.Meta(pattern=r"^[A-Z]{2}\Z")]
_URL = Annotated[str, msgspec.Meta(pattern=_ADDRESS, max_length=2048)]
_DECIMAL_TEXT = Annotated[str, msgspec.Meta(max_length=64)]


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


class _Pricing(msgspec.Struct, forbid_unknown_fields=True):
    prompt: _DECIMAL_TEXT
    completion: _DECIMAL_TEXT
    image: _DECIMAL_TEXT = "0"
    request: _DECIMAL_TEXT = "0"
    input_cache_read: _DECIMAL_TEXT | None = None
    input_cache_write: _DECIMAL_TEXT | None = None
    image_output: _DECIMAL_TEXT | None = None


class EndpointRow(msgspec.Struct, forbid_unknown_fields=True):
    model: _Text
    provider: _Text
    upstream_model_id: _Text
    pricing: _Pricing
    context_length: _Count | None = None
    max_completion_tokens: _Count | None = None
    quantization: _Code | None = None
    is_moderated: bool = False
    region: _Code = "global"
    zdr: bool = False
    supported_parameters: list[_Word] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    providers: list[msgspec.Raw] = []
    models: list[msgspec.Raw] = []
    endpoints: list[msgspec.Raw] = []
    about: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """A file whose every row is valid by itself and whose references resolve."""

    providers: list[ProviderRow]
    models: list[ModelRow]
    endpoints: list[EndpointRow]


def parse(data: bytes) -> Catalog:
    """Reads a catalogue file; raises :class:`ImportRefused` with the faults that it has."""
    problems = Problems()
    file = _File()
    try:
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        problems.add_at("not a catalogue file", str(exc))
    problems.raise_if_any()
    providers = _rows(file.providers, ProviderRow, "providers", problems)
    models = _rows(file.models, ModelRow, "models", problems)
    endpoints = _rows(file.endpoints, EndpointRow, "endpoints", problems)
    policy = settings.EGRESS_POLICY
    for place, provider in providers:
        for text in _faults_of_provider(provider, policy):
            problems.add_at(place, text)
    for place, model in models:
        for text in _faults_of_model(model):
            problems.add_at(place, text)
    for place, endpoint in endpoints:
        for text in _faults_of_endpoint(endpoint):
            problems.add_at(place, text)
    _refuse_repeated([(place, row.slug) for place, row in providers], problems)
    _refuse_repeated([(place, row.id) for place, row in models], problems)
    _refuse_repeated([(place, row.canonical_slug) for place, row in models], problems)
    _refuse_repeated([(place, _key(row)) for place, row in endpoints], problems)
    problems.raise_if_any()
    return Catalog(
        [row for _, row in providers], [row for _, row in models], [row for _, row in endpoints]
    )


def apply(catalog: Catalog, *, dry_run: bool = False, on_row: RowListener | None = None) -> Report:
    """Creates and updates the rows by their natural keys, all or none.

    A row that already says the same is left alone, so that a second run reports only ``unchanged``.
    ``dry_run`` is the same path, rolled back; ``plan`` is told the fate of each row. Raises
    :class:`ImportRefused` when an endpoint names a model or provider that neither the file nor the
    database has.
    """
    report = Report.of_kinds(*KINDS, dry_run=dry_run)
    tell = report.counter(on_row)
    with transaction.atomic():
        # Whoever refers to a provider or a model meanwhile is not held up: keys stay as they are.
        stored_providers = Provider.objects.select_for_update(no_key=True)
        providers = {row.slug: row for row in stored_providers}
        _upsert(
            tell,
            "providers",
            providers,
            {row.slug: _provider_values(row) for row in catalog.providers},
            Provider,
        )
        stored_models = LanguageModel.objects.select_for_update(no_key=True)
        models = {row.canonical_slug: row for row in stored_models}
        _require_free_slugs(catalog.models, models)
        _release_slugs(catalog.models, models)
        _upsert(
            tell,
            "models",
            models,
            {row.canonical_slug: _model_values(row) for row in catalog.models},
            LanguageModel,
        )
        _require_references(catalog.endpoints, models, providers)
        _upsert_endpoints(tell, catalog.endpoints, models, providers)
        transaction.set_rollback(dry_run)
    return report


def export() -> tuple[bytes, dict[str, int]]:
    """Returns what is listed, as a file that :func:`apply` finds unchanged, and its rows of a kind.

    What has left the catalogue is left out, because an import would bring it back.
    """
    with transaction.atomic():
        providers = Provider.objects.filter(is_listed=True).order_by("slug")
        models = LanguageModel.objects.listed().order_by("canonical_slug")
        endpoints = (
            ModelEndpoint.objects.routable()
            .select_related("model", "provider", "price")
            .order_by("model__canonical_slug", "provider__slug", "upstream_model_id", "region")
        )
        rows: dict[str, list[Any]] = {
            "providers": [_provider_row(provider) for provider in providers],
            "models": [_model_row(model) for model in models],
            "endpoints": [_endpoint_row(endpoint) for endpoint in endpoints],
        }
    data = msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n"
    return data, {kind: len(rows[kind]) for kind in KINDS}


def _upsert(
    tell: RowListener,
    kind: str,
    stored: dict[str, _Stored],
    wanted: dict[str, dict[str, Any]],
    model: type[_Stored],
) -> None:
    """Writes the rows that differ, and adds the new ones to ``stored``."""
    created: list[_Stored] = []
    updated: list[_Stored] = []
    for key, values in wanted.items():
        row = stored.get(key)
        if row is None:
            stored[key] = row = model(**values)
            created.append(row)
            tell(kind, key, RowOutcome.CREATE)
        elif _assign(row, values):
            updated.append(row)
            tell(kind, key, RowOutcome.UPDATE)
        else:
            tell(kind, key, RowOutcome.UNCHANGED)
    model._default_manager.bulk_create(created, batch_size=1000)
    if updated:
        names = [*next(iter(wanted.values())), "updated_at"]
        model._default_manager.bulk_update(updated, names, batch_size=1000)


def _upsert_endpoints(
    tell: RowListener,
    rows: list[EndpointRow],
    models: dict[str, LanguageModel],
    providers: dict[str, Provider],
) -> None:
    stored = {
        (row.model.canonical_slug, row.provider.slug, row.upstream_model_id, row.region): row
        for row in ModelEndpoint.objects.select_related("model", "provider", "price")
    }
    created: list[ModelEndpoint] = []
    updated: list[ModelEndpoint] = []
    prices: list[PriceVersion] = []
    for row in rows:
        values = {
            "context_length": row.context_length,
            "max_completion_tokens": row.max_completion_tokens,
            "quantization": row.quantization,
            "is_moderated": row.is_moderated,
            "zdr": row.zdr,
            "supported_parameters": row.supported_parameters,
            "is_listed": True,
        }
        price = _price(row.pricing)
        endpoint = stored.get(_key(row))
        if endpoint is None:
            endpoint = ModelEndpoint(
                model=models[row.model],
                provider=providers[row.provider],
                upstream_model_id=row.upstream_model_id,
                region=row.region,
                **values,
            )
            created.append(endpoint)
            same_price = False
            fate = RowOutcome.CREATE
        else:
            same_price = endpoint.price.price == price
            fate = RowOutcome.UNCHANGED
            if _assign(endpoint, values) or not same_price:
                endpoint.updated_at = timezone.now()
                updated.append(endpoint)
                fate = RowOutcome.UPDATE
        tell("endpoints", " ".join(_key(row)), fate)
        if not same_price:
            endpoint.price = PriceVersion.of(subject_id=endpoint.pk, price=price)
            prices.append(endpoint.price)
    PriceVersion.objects.bulk_create(prices, batch_size=1000)
    for endpoint in (*created, *updated):
        endpoint.price_id = endpoint.price.pk
    ModelEndpoint.objects.bulk_create(created, batch_size=1000)
    if updated:
        ModelEndpoint.objects.bulk_update(
            updated,
            [
                "price", "context_length", "max_completion_tokens", "quantization",
                "is_moderated", "zdr", "supported_parameters", "is_listed", "updated_at",
            ],
            batch_size=1000,
        )  # fmt: skip


def _assign(row: Provider | LanguageModel | ModelEndpoint, values: dict[str, Any]) -> bool:
    """Sets the values that differ; returns whether any did."""
    changes = {name: value for name, value in values.items() if getattr(row, name) != value}
    for name, value in changes.items():
        setattr(row, name, value)
    if changes:
        row.updated_at = timezone.now()
    return bool(changes)


def _rows(
    raws: list[msgspec.Raw], shape: type[_Row], kind: str, problems: Problems
) -> list[tuple[str, _Row]]:
    rows = []
    for index, raw in enumerate(raws):
        place = f"{kind}[{index}]"
        try:
            rows.append((place, msgspec.json.decode(raw, type=shape)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            problems.add_at(place, str(exc))
    return rows


def _faults_of_provider(row: ProviderRow, policy: EgressPolicy) -> list[str]:
    if row.dialect not in Dialect.values:
        return [f"dialect {row.dialect!r} is none of {', '.join(Dialect.values)}"]
    if Dialect(row.dialect).url_from_credential:
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


def _faults_of_model(row: ModelRow) -> list[str]:
    return [
        f"{name}: must not contain NUL"
        for name in ("default_parameters", "per_request_limits")
        if any(NOT_STORABLE.search(text) for text in _texts(getattr(row, name)))
    ]


def _texts(value: Any) -> Iterator[str]:
    """Yields the strings of a JSON value, those that name members too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _faults_of_endpoint(row: EndpointRow) -> list[str]:
    return [
        f"pricing.{name}: must be a decimal such as 0.0000005, below 1000000"
        for name in row.pricing.__struct_fields__
        if (text := getattr(row.pricing, name)) is not None and not DECIMAL.fullmatch(text)
    ]


def _refuse_repeated(keys: list[tuple[str, Any]], problems: Problems) -> None:
    first: dict[Any, str] = {}
    for place, key in keys:
        if key in first:
            problems.add_at(place, f"the same as {first[key]} ({key})")
        first.setdefault(key, place)


def _require_free_slugs(rows: list[ModelRow], stored: dict[str, LanguageModel]) -> None:
    owners = {model.slug: model.canonical_slug for model in stored.values()}
    moved = {row.canonical_slug for row in rows}
    problems = Problems()
    for index, row in enumerate(rows):
        owner = owners.get(row.id)
        if owner is not None and owner != row.canonical_slug and owner not in moved:
            problems.add_at(f"models[{index}]", f"id {row.id!r} already belongs to {owner!r}")
    problems.raise_if_any()


def _release_slugs(rows: list[ModelRow], stored: dict[str, LanguageModel]) -> None:
    """Gives up the public names that move, so that one may pass from one model to another."""
    renamed = [
        stored[row.canonical_slug].pk
        for row in rows
        if row.canonical_slug in stored and stored[row.canonical_slug].slug != row.id
    ]
    LanguageModel.objects.filter(pk__in=renamed).update(
        slug=Concat(Value("~"), Cast("pk", CharField()))
    )


def _require_references(
    rows: list[EndpointRow], models: dict[str, LanguageModel], providers: dict[str, Provider]
) -> None:
    problems = Problems()
    for index, row in enumerate(rows):
        place = f"endpoints[{index}]"
        if row.model not in models:
            problems.add_at(place, f"no model has canonical_slug {row.model!r}")
        if row.provider not in providers:
            problems.add_at(place, f"no provider has slug {row.provider!r}")
    problems.raise_if_any()


def _key(row: EndpointRow) -> tuple[str, str, str, str]:
    return row.model, row.provider, row.upstream_model_id, row.region


def _provider_values(row: ProviderRow) -> dict[str, Any]:
    base_url = row.base_url
    if base_url is not None:
        policy = settings.EGRESS_POLICY
        base_url = parse_base_url(base_url, policy=policy, require_https=False).text
    return {
        "slug": row.slug,
        "name": row.name,
        "dialect": row.dialect,
        "base_url": base_url,
        "trains_on_prompts": row.data_policy.training,
        "retains_prompts": row.data_policy.retains_prompts,
        "datacenters": row.datacenters or [],
        "headquarters": row.headquarters,
        "privacy_policy_url": row.privacy_policy_url,
        "terms_of_service_url": row.terms_of_service_url,
        "status_page_url": row.status_page_url,
        "is_listed": True,
    }


def _model_values(row: ModelRow) -> dict[str, Any]:
    return {
        "slug": row.id,
        "canonical_slug": row.canonical_slug,
        "name": row.name,
        "created": row.created,
        "description": row.description,
        "context_length": row.context_length,
        "input_modalities": row.architecture.input_modalities,
        "output_modalities": row.architecture.output_modalities,
        "modality": row.architecture.modality,
        "tokenizer": row.architecture.tokenizer,
        "instruct_type": row.architecture.instruct_type,
        "supported_parameters": row.supported_parameters,
        "default_parameters": row.default_parameters,
        "per_request_limits": row.per_request_limits,
        "supported_voices": row.supported_voices,
        "expiration_date": row.expiration_date,
        "knowledge_cutoff": row.knowledge_cutoff,
        "is_listed": True,
    }


def _price(pricing: _Pricing) -> Price:
    def optional(text: str | None) -> Decimal | None:
        return None if text is None else Decimal(text)

    return Price(
        prompt=Decimal(pricing.prompt),
        completion=Decimal(pricing.completion),
        image=Decimal(pricing.image),
        request=Decimal(pricing.request),
        cache_read=optional(pricing.input_cache_read),
        cache_write=optional(pricing.input_cache_write),
        image_output=optional(pricing.image_output),
    )


def _provider_row(provider: Provider) -> ProviderRow:
    return ProviderRow(
        slug=provider.slug,
        name=provider.name,
        dialect=provider.dialect,
        base_url=provider.base_url,
        data_policy=_DataPolicy(
            training=provider.trains_on_prompts, retains_prompts=provider.retains_prompts
        ),
        datacenters=provider.datacenters,
        headquarters=provider.headquarters,
        privacy_policy_url=provider.privacy_policy_url,
        terms_of_service_url=provider.terms_of_service_url,
        status_page_url=provider.status_page_url,
    )


def _model_row(model: LanguageModel) -> ModelRow:
    return ModelRow(
        id=model.slug,
        canonical_slug=model.canonical_slug,
        name=model.name,
        created=model.created,
        description=model.description,
        context_length=model.context_length,
        architecture=_Architecture(
            input_modalities=model.input_modalities,
            output_modalities=model.output_modalities,
            modality=model.modality,
            tokenizer=model.tokenizer,
            instruct_type=model.instruct_type,
        ),
        supported_parameters=model.supported_parameters,
        default_parameters=model.default_parameters,
        expiration_date=model.expiration_date,
        knowledge_cutoff=model.knowledge_cutoff,
        supported_voices=model.supported_voices,
        per_request_limits=model.per_request_limits,
    )


def _endpoint_row(endpoint: ModelEndpoint) -> EndpointRow:
    return EndpointRow(
        model=endpoint.model.canonical_slug,
        provider=endpoint.provider.slug,
        upstream_model_id=endpoint.upstream_model_id,
        pricing=_pricing(endpoint.price.price),
        context_length=endpoint.context_length,
        max_completion_tokens=endpoint.max_completion_tokens,
        quantization=endpoint.quantization,
        is_moderated=endpoint.is_moderated,
        region=endpoint.region,
        zdr=endpoint.zdr,
        supported_parameters=endpoint.supported_parameters,
    )


def _pricing(price: Price) -> _Pricing:
    return _Pricing(
        prompt=decimal_text(price.prompt),
        completion=decimal_text(price.completion),
        image=decimal_text(price.image),
        request=decimal_text(price.request),
        input_cache_read=None if price.cache_read is None else decimal_text(price.cache_read),
        input_cache_write=None if price.cache_write is None else decimal_text(price.cache_write),
        image_output=None if price.image_output is None else decimal_text(price.image_output),
    )
