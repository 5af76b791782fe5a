"""Imports and exports the catalogue file: parses it, checks every row, applies all or nothing."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from django.conf import settings
from django.db import connection, transaction
from django.db.models import CharField, Value
from django.db.models.functions import Cast, Concat

from catalog.models import LanguageModel, ModelEndpoint, PriceVersion, Provider
from catalog.rows import (
    EndpointRow,
    ModelRow,
    ProviderRow,
    Source,
    endpoint_key,
    endpoint_row,
    endpoint_values,
    find_endpoint_problems,
    find_model_problems,
    find_provider_problems,
    model_row,
    model_values,
    price_of,
    provider_row,
    provider_values,
)
from catalog.sync.plans.columns import (
    find_column_changes,
    find_price_changes,
    list_columns,
    list_terms,
)
from config.bulk.problems import Problems
from config.bulk.report import Report, RowListener, RowOutcome
from config.clocks.clock import clock

_Stored = TypeVar("_Stored", Provider, LanguageModel)
_Row = TypeVar("_Row")
# The discount of a price is a number.
_encode = msgspec.json.Encoder(decimal_format="number").encode

KINDS: Final = ("providers", "models", "endpoints")
BUNDLED: Final = Path(__file__).with_name("data") / "catalogue.json"
"""The catalogue that comes with the product; :mod:`tests.bench.bundle` renews its prices."""
# Rows of providers that are not there yet cannot be locked.
_TAKE_TURNS: Final = "SELECT pg_advisory_xact_lock(hashtextextended('causeway_catalogue', 0))"
_ORIGIN: Final = ("source", "as_of", "updated_at")
# What a plan shows of a new row.
_TERMS: Final = {"providers": ("dialect", "base_url"), "models": ("slug", "context_length")}


class _About(msgspec.Struct):
    """The origin of a file; other members are for people."""

    source: Source = ""
    as_of: date | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    providers: list[msgspec.Raw] = []
    models: list[msgspec.Raw] = []
    endpoints: list[msgspec.Raw] = []
    about: _About | None = None


@dataclass(frozen=True, slots=True)
class Catalog:
    """The rows of a file. Every row is valid, and no key is repeated.

    ``source`` and ``as_of`` are written to endpoints that are new or change, unless their row names
    its own.
    """

    providers: list[ProviderRow]
    models: list[ModelRow]
    endpoints: list[EndpointRow]
    source: str = ""
    as_of: date | None = None


def parse(data: bytes) -> Catalog:
    """Parses a catalogue file; raises :class:`ImportRefused` with its problems.

    A byte order mark, with which editors of Windows save it, is left out.
    """
    problems = Problems()
    file = _File()
    try:
        file = msgspec.json.decode(data.removeprefix(codecs.BOM_UTF8), type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        problems.add_at("not a catalogue file", str(exc))
    problems.raise_if_any()
    providers = _decode_rows(file.providers, ProviderRow, "providers", problems)
    models = _decode_rows(file.models, ModelRow, "models", problems)
    endpoints = _decode_rows(file.endpoints, EndpointRow, "endpoints", problems)
    found = [(place, _find_provider_problems(row)) for place, row in providers]
    found += [(place, find_model_problems(row)) for place, row in models]
    found += [(place, find_endpoint_problems(row)) for place, row in endpoints]
    for place, texts in found:
        for text in texts:
            problems.add_at(place, text)
    _refuse_repeated([(place, row.slug) for place, row in providers], problems)
    _refuse_repeated([(place, row.id) for place, row in models], problems)
    _refuse_repeated([(place, row.canonical_slug) for place, row in models], problems)
    _refuse_repeated([(place, endpoint_key(row)) for place, row in endpoints], problems)
    problems.raise_if_any()
    about = file.about or _About()
    return Catalog(
        [row for _, row in providers],
        [row for _, row in models],
        [row for _, row in endpoints],
        about.source,
        about.as_of,
    )


def apply(catalog: Catalog, *, dry_run: bool = False, on_row: RowListener | None = None) -> Report:
    """Creates and updates the rows by their natural keys, all or none.

    An equal row stays as it is, so that a second run reports only ``unchanged``. ``dry_run`` takes
    the same path and rolls back; ``on_row`` receives the outcome of each row. Raises
    :class:`ImportRefused` when an endpoint names a model or provider that neither the file nor the
    database has.
    """
    report = Report.of_kinds(*KINDS, dry_run=dry_run)
    count_row = report.counter(on_row)
    with transaction.atomic():
        lock_catalogue()
        providers = {row.slug: row for row in Provider.objects.all()}
        _require_no_secrets(catalog.providers, providers)
        _upsert(
            count_row,
            "providers",
            providers,
            {row.slug: provider_values(row) for row in catalog.providers},
            Provider,
        )
        stored_models = LanguageModel.objects.select_for_update(no_key=True)
        models = {row.canonical_slug: row for row in stored_models}
        _require_free_slugs(catalog.models, models)
        _release_slugs(catalog.models, models)
        _upsert(
            count_row,
            "models",
            models,
            {
                row.canonical_slug: model_values(row, is_new=row.canonical_slug not in models)
                for row in catalog.models
            },
            LanguageModel,
        )
        _require_references(catalog.endpoints, models, providers)
        _upsert_endpoints(count_row, catalog, models, providers)
        transaction.set_rollback(dry_run)
    return report


def lock_catalogue() -> None:
    """Locks the providers and then the endpoints, as :func:`apply` does first.

    Concurrent imports wait for each other, and what an operator saves meanwhile waits for them. A
    transaction that compares endpoints before it applies rows calls this before it reads them: a
    query that locks and reads at once loses an endpoint whose price changes while it waits.
    """
    with connection.cursor() as cursor:
        cursor.execute(_TAKE_TURNS)
    # The primary keys do not change, so the weaker lock lets inserts refer to these rows.
    list(Provider.objects.select_for_update(no_key=True).values_list("pk"))
    list(ModelEndpoint.objects.select_for_update(no_key=True).order_by("pk").values_list("pk"))


def export() -> tuple[bytes, dict[str, int]]:
    """Returns the listed catalogue as a file, and the number of its rows of each kind.

    An import of the file changes nothing. Delisted rows are omitted, because an import would list
    them again.
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
            "providers": [provider_row(provider) for provider in providers],
            "models": [model_row(model) for model in models],
            "endpoints": [endpoint_row(endpoint) for endpoint in endpoints],
        }
    data = msgspec.json.format(_encode(rows), indent=2) + b"\n"
    return data, {kind: len(rows[kind]) for kind in KINDS}


def _upsert(
    count_row: RowListener,
    kind: str,
    stored: dict[str, _Stored],
    values_by_key: dict[str, dict[str, Any]],
    model: type[_Stored],
) -> None:
    """Writes the rows that differ, and adds the new ones to ``stored``."""
    created: list[_Stored] = []
    updated: list[_Stored] = []
    for key, values in values_by_key.items():
        row = stored.get(key)
        if row is None:
            stored[key] = row = model(**values)
            created.append(row)
            count_row(kind, key, RowOutcome.CREATE, list_columns(values, _TERMS[kind]))
        elif changes := find_column_changes(row, values):
            _assign(row, values)
            updated.append(row)
            count_row(kind, key, RowOutcome.UPDATE, changes)
        else:
            count_row(kind, key, RowOutcome.UNCHANGED)
    model._default_manager.bulk_create(created, batch_size=1000)
    if updated:
        # A row may leave members out, and so keeps what is stored.
        names = [*dict.fromkeys(name for values in values_by_key.values() for name in values)]
        names.append("updated_at")
        model._default_manager.bulk_update(updated, names, batch_size=1000)


def _upsert_endpoints(
    count_row: RowListener,
    catalog: Catalog,
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
    for row in catalog.endpoints:
        values = endpoint_values(row)
        price = price_of(row)
        endpoint = stored.get(endpoint_key(row))
        if endpoint is None:
            endpoint = ModelEndpoint(
                model=models[row.model],
                provider=providers[row.provider],
                upstream_model_id=row.upstream_model_id,
                region=row.region,
                **values,
            )
            created.append(endpoint)
            has_same_price = False
            outcome, changes = RowOutcome.CREATE, list_terms(price, values)
        else:
            has_same_price = endpoint.price.price == price
            changes = find_price_changes(endpoint.price.price, price)
            changes += find_column_changes(endpoint, values)
            outcome = RowOutcome.UNCHANGED
            if changes or not has_same_price:
                _assign(endpoint, values)
                updated.append(endpoint)
                outcome = RowOutcome.UPDATE
        if outcome is not RowOutcome.UNCHANGED and "source" not in values:
            endpoint.source, endpoint.as_of = catalog.source, catalog.as_of
        count_row("endpoints", " ".join(endpoint_key(row)), outcome, changes)
        if not has_same_price:
            endpoint.price = PriceVersion.of(subject_id=endpoint.pk, price=price)
            prices.append(endpoint.price)
    PriceVersion.objects.bulk_create(prices, batch_size=1000)
    for endpoint in (*created, *updated):
        endpoint.price_id = endpoint.price.pk
    ModelEndpoint.objects.bulk_create(created, batch_size=1000)
    if updated:
        # A row may leave members out, and so keeps what is stored.
        columns = (name for row in catalog.endpoints for name in endpoint_values(row))
        ModelEndpoint.objects.bulk_update(
            updated, [*dict.fromkeys(("price", *columns, *_ORIGIN))], batch_size=1000
        )


def _assign(row: Provider | LanguageModel | ModelEndpoint, values: dict[str, Any]) -> None:
    for name, value in values.items():
        setattr(row, name, value)
    row.updated_at = clock.now()


def _find_provider_problems(row: ProviderRow) -> list[str]:
    """Returns the problems of a row; what is allowed to the stored provider is allowed to it."""
    policy = settings.EGRESS_POLICY
    if found := find_provider_problems(row, policy):
        stored = Provider.objects.filter(slug=row.slug).first()
        if stored is not None and stored.allowed_networks:
            return find_provider_problems(row, policy.extend(stored.reach))
    return found


def _require_no_secrets(rows: list[ProviderRow], stored: dict[str, Provider]) -> None:
    problems = Problems()
    for index, row in enumerate(rows):
        provider = stored.get(row.slug)
        if row.keyless is True and provider is not None and provider.sealed_credential is not None:
            problems.add_at(
                f"providers[{index}]",
                f"keyless: the provider {row.slug!r} has a credential; mark it as keyless in the "
                "console, which forgets the credential",
            )
    problems.raise_if_any()


def _decode_rows(
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


def _refuse_repeated(keys: list[tuple[str, Any]], problems: Problems) -> None:
    first: dict[Any, str] = {}
    for place, key in keys:
        if key in first:
            problems.add_at(place, f"repeats {first[key]} ({key}); remove one of them")
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
    """Replaces the slugs that change with placeholders, so that models can swap their slugs."""
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
