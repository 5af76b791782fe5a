"""Reads the whole catalogue with one statement, for a thread that needs it once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
from django.db import connection

from config import sql
from inference.admission.copies.catalog import (
    READ_ALIASES,
    READ_CHANGES,
    READ_ENDPOINTS,
    READ_MODELS,
    READ_PROVIDERS,
    READ_SUBJECTS,
    Reading,
    Result,
    read_catalog,
)
from inference.routing.routes import CatalogModel, CatalogSnapshot

READ_CATALOG: Final = sql.load_statement("catalog", "read_catalog")

_ALL: Final = 2**31


class _ProviderRow(NamedTuple):
    """A row of ``read_providers.sql``, with the credential in hexadecimal."""

    provider_id: UUID
    slug: str
    name: str
    dialect: str
    base_url: str | None
    trains_on_prompts: bool
    is_listed: bool
    sealed: str | None
    is_keyless: bool
    allowed_networks: Sequence[str] | None
    ca_certificates: str
    requests_per_minute: int | None
    tokens_per_minute: int | None


class _EndpointRow(NamedTuple):
    """A row of ``read_endpoints.sql``."""

    endpoint_id: UUID
    model_id: UUID
    provider_id: UUID
    upstream_model_id: str
    region: str | None
    zdr: bool
    quantization: str | None
    context_length: int | None
    max_completion_tokens: int | None
    supported_parameters: Sequence[str]
    abilities: dict[str, Any]
    connect_timeout: int | None
    headers_timeout: int | None
    first_event_timeout: int | None
    idle_timeout: int | None
    total_timeout: int | None
    price_id: int
    prompt: Decimal
    completion: Decimal
    image: Decimal
    request: Decimal
    cache_read: Decimal | None
    cache_write: Decimal | None
    image_output: Decimal | None
    discount: Decimal
    lines: Sequence[Any]


class _AliasRow(NamedTuple):
    """A row of ``read_aliases.sql``."""

    alias_id: UUID
    name: str
    targets: Sequence[str]


def read_catalog_on_orm() -> CatalogSnapshot:
    """Reads the present catalogue on this thread's connection of the ORM, with one query.

    The result equals what a worker reads in parts, between which its requests go on.
    """
    with connection.cursor() as cursor:
        sql.execute(cursor, READ_CATALOG)
        version, *texts = cursor.fetchone()
    providers = _decode(texts[0], _ProviderRow)
    models = _decode(texts[1], CatalogModel)
    endpoints = _decode(texts[2], _EndpointRow)
    aliases = _decode(texts[3], _AliasRow)
    return _answer(
        read_catalog(part=_ALL),
        {
            READ_CHANGES: [(version, False, ())],
            READ_SUBJECTS: [(row[0],) for row in (*providers, *models, *aliases)],
            READ_PROVIDERS: [row._replace(sealed=_unhex(row.sealed)) for row in providers],
            READ_MODELS: models,
            READ_ENDPOINTS: endpoints,
            READ_ALIASES: aliases,
        },
    )


def _answer(
    reading: Reading[Result], rows: Mapping[sql.Statement, Collection[Sequence[Any]]]
) -> Result:
    """Runs a reading whose statements have been answered already, each for all parameters."""
    try:
        statement, _ = next(reading)
        while True:
            statement, _ = reading.send(list(rows[statement]))
    except StopIteration as finished:
        return finished.value


def _decode(text: str, row: Any) -> list[Any]:
    return msgspec.json.decode(text, type=list[row])


def _unhex(sealed: str | None) -> Any:
    return None if sealed is None else bytes.fromhex(sealed)
