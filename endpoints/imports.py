"""Private endpoints in bulk: JSON lines of the create request, without ``activate``.

A line means the endpoint with the same model, provider, ``upstream_model_id`` and ``base_url``.
Where the organization has none, a draft is created. A draft that says otherwise gets what the line
says; an endpoint that was ever activated may only be named as it is, because an import makes no
transition. A member that is absent leaves alone what is stored.

An organization may have registered the same endpoint several times; then as many lines may name it,
which mean the endpoints from the oldest on. Any further line with the same four members is refused.
Rates that the request does not have, per image and per request, are neither compared nor exported.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

import msgspec
from django.db import connection, transaction

from accounts.models import Organization
from catalog.imports import DECIMAL
from catalog.pricing import Price, decimal_text
from config.api.errors import GatewayError
from config.api.text import CONTROL_CHARACTERS
from config.bulk.problems import ImportRefused, Problems
from config.bulk.report import Report, RowListener, RowOutcome
from config.bulk.rows import decode_lines, parse_json_rows
from endpoints.models import Draft, PrivateEndpoint, canonical_base_url

KIND: Final = "private_endpoints"
ACTOR: Final = "import_private_endpoints"
_CHUNK: Final = 2000

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_URL = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
_Rate = Annotated[str, msgspec.Meta(max_length=64)]

_CREATE_TABLE: Final = """
CREATE TEMPORARY TABLE private_endpoint_import (
    line bigint NOT NULL,
    model text NOT NULL,
    provider text NOT NULL,
    upstream_model_id text NOT NULL,
    base_url text NOT NULL,
    row text NOT NULL
)
"""
_COPY: Final = (
    "COPY private_endpoint_import (line, model, provider, upstream_model_id, base_url, row) "
    "FROM STDIN"
)
# The n-th line with a key means the n-th endpoint with it.
_MATCHED: Final = """
WITH wanted AS (
    SELECT *, row_number() OVER same AS place, first_value(line) OVER same AS first
    FROM private_endpoint_import
    WINDOW same AS (PARTITION BY model, provider, upstream_model_id, base_url ORDER BY line)
), stored AS (
    SELECT endpoint.id, model.canonical_slug AS model, provider.slug AS provider,
        endpoint.upstream_model_id, coalesce(endpoint.base_url, '') AS base_url,
        row_number() OVER (
            PARTITION BY endpoint.model_id, endpoint.provider_id, endpoint.upstream_model_id,
                endpoint.base_url
            ORDER BY endpoint.created_at, endpoint.id
        ) AS place
    FROM endpoints_privateendpoint AS endpoint
    JOIN catalog_languagemodel AS model ON model.id = endpoint.model_id
    JOIN catalog_provider AS provider ON provider.id = endpoint.provider_id
    WHERE endpoint.organization_id = %s AND endpoint.deleted_at IS NULL
)
SELECT wanted.line, wanted.first, wanted.row, stored.id
FROM wanted LEFT JOIN stored
    USING (model, provider, upstream_model_id, base_url, place)
ORDER BY wanted.line
"""


class _Pricing(msgspec.Struct, forbid_unknown_fields=True):
    prompt: _Rate
    completion: _Rate
    cache_read: _Rate | msgspec.UnsetType = msgspec.UNSET
    cache_write: _Rate | msgspec.UnsetType = msgspec.UNSET


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    model_permaslug: _Text
    provider_slug: _Text
    upstream_model_id: _Text
    base_url: _URL | None = None
    declared_region: Literal["global", "europe", "us"] | msgspec.UnsetType | None = msgspec.UNSET
    declared_zdr: bool | msgspec.UnsetType | None = msgspec.UNSET
    pricing: _Pricing | msgspec.UnsetType = msgspec.UNSET

    @property
    def text(self) -> str:
        parts = (self.model_permaslug, self.provider_slug, self.upstream_model_id, self.base_url)
        return " ".join(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class _Match:
    """A line of the file, the first line with its key, and the endpoint that it means, if any."""

    line: int
    first: int
    row: _Row
    endpoint: PrivateEndpoint | None


def apply(
    organization_id: uuid.UUID,
    lines: Iterable[bytes],
    *,
    by: str = ACTOR,
    dry_run: bool = False,
    on_row: RowListener | None = None,
) -> Report:
    """Creates and updates the drafts of a file, all or none.

    The rows wait in a temporary table of the database, so that memory does not grow with them. The
    limit of the organization holds for the whole. ``dry_run`` is the same path, rolled back;
    ``plan`` is told the fate of each row. Raises :class:`ImportRefused`.
    """
    report = Report.of_kinds(KIND, dry_run=dry_run)
    tell = report.counter(on_row)
    problems = Problems()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(_CREATE_TABLE)
            with cursor.copy(_COPY) as copy:
                for line, row in _rows(lines, problems):
                    copy.write_row(
                        (
                            line,
                            row.model_permaslug,
                            row.provider_slug,
                            row.upstream_model_id,
                            row.base_url or "",
                            msgspec.json.encode(row).decode(),
                        )
                    )
        # What is judged here must still hold when it is written: creates wait for their turn.
        organization = Organization.objects.lock(organization_id)
        for chunk in _matches(organization_id):
            _judge(chunk, tell, problems)
        problems.raise_if_any()
        try:
            PrivateEndpoint.objects.require_room(organization, report.created[KIND])
        except GatewayError as exc:
            raise ImportRefused([exc.message]) from None
        if report.created[KIND] or report.updated[KIND]:
            for chunk in _matches(organization_id):
                _write(organization_id, chunk, problems, by)
            problems.raise_if_any()
        with connection.cursor() as cursor:
            # Whoever called us within a transaction of theirs may import once more in it.
            cursor.execute("DROP TABLE private_endpoint_import")
        transaction.set_rollback(dry_run)
    return report


def export(organization_id: uuid.UUID) -> Iterator[bytes]:
    """Yields the lines of a file that :func:`apply` finds unchanged, oldest endpoint first."""
    # A cursor of the server lives no longer than a transaction.
    with transaction.atomic():
        endpoints = (
            PrivateEndpoint.objects.for_organization(organization_id)
            .select_related("model", "provider", "price")
            .order_by("created_at", "id")
        )
        for endpoint in endpoints.iterator(chunk_size=_CHUNK):
            row = _Row(
                model_permaslug=endpoint.model.canonical_slug,
                provider_slug=endpoint.provider.slug,
                upstream_model_id=endpoint.upstream_model_id,
                base_url=endpoint.base_url,
                declared_region=endpoint.declared_region,
                declared_zdr=endpoint.declared_zdr,
                pricing=_pricing(endpoint.price.price),
            )
            yield msgspec.json.encode(row) + b"\n"


def _rows(lines: Iterable[bytes], problems: Problems) -> Iterator[tuple[int, _Row]]:
    for line, row in parse_json_rows(decode_lines(lines, problems), _Row, problems):
        faults = _faults_of(row)
        try:
            row.base_url = canonical_base_url(row.base_url)
        except GatewayError as exc:
            faults.append(exc.message)
        for fault in faults:
            problems.add(line, fault)
        if not faults:
            yield line, row


def _faults_of(row: _Row) -> list[str]:
    faults = [
        f"{name} must not contain control characters"
        for name in ("model_permaslug", "provider_slug", "upstream_model_id")
        if CONTROL_CHARACTERS.search(getattr(row, name))
    ]
    if row.pricing is not msgspec.UNSET:
        faults += [
            f"pricing.{name} must be a decimal such as 0.0000005, below 1000000"
            for name in row.pricing.__struct_fields__
            if (text := getattr(row.pricing, name)) is not msgspec.UNSET
            and not DECIMAL.fullmatch(text)
        ]
    return faults


def _matches(organization_id: uuid.UUID) -> Iterator[list[_Match]]:
    """Yields the rows of the file in chunks, each with the endpoint that it means."""
    with connection.chunked_cursor() as cursor:
        cursor.execute(_MATCHED, [organization_id])
        while found := cursor.fetchmany(_CHUNK):
            endpoints = PrivateEndpoint.objects.select_related("price").in_bulk(
                [key for *_, key in found if key is not None]
            )
            yield [
                _Match(line, first, msgspec.json.decode(text, type=_Row), endpoints.get(key))
                for line, first, text, key in found
            ]


def _judge(chunk: list[_Match], tell: RowListener, problems: Problems) -> None:
    """Decides the fate of each row, and collects the faults."""
    drafts = [_draft(match.row) for match in chunk]
    refusals = PrivateEndpoint.objects.refusals(drafts)
    for match, refusal in zip(chunk, refusals, strict=True):
        row, endpoint = match.row, match.endpoint
        if endpoint is None:
            if match.line != match.first:
                problems.add(match.line, f"the same endpoint as line {match.first}")
            elif refusal is not None:
                problems.add(match.line, refusal.message)
            else:
                tell(KIND, row.text, RowOutcome.CREATE)
        elif not _changes(row, endpoint) and _new_price(row, endpoint) is None:
            tell(KIND, row.text, RowOutcome.UNCHANGED)
        elif endpoint.status == PrivateEndpoint.Status.DRAFT:
            tell(KIND, row.text, RowOutcome.UPDATE)
        else:
            problems.add(
                match.line, f"the endpoint is {endpoint.status}; only a draft can be changed"
            )


def _write(organization_id: uuid.UUID, chunk: list[_Match], problems: Problems, by: str) -> None:
    """Creates and updates what :func:`_judge` let pass."""
    fresh = [_draft(match.row) for match in chunk if match.endpoint is None]
    if fresh:
        PrivateEndpoint.objects.create_drafts(organization_id=organization_id, drafts=fresh, by=by)
    for match in chunk:
        if match.endpoint is None:
            continue
        changes = _changes(match.row, match.endpoint)
        price = _new_price(match.row, match.endpoint)
        try:
            if changes:
                match.endpoint.edit(upstream_model_id=match.row.upstream_model_id, by=by, **changes)
            if price is not None:
                match.endpoint.reprice(price)
        except GatewayError as exc:
            # Activated, disabled or deleted since it was judged.
            problems.add(match.line, exc.message)


def _changes(row: _Row, endpoint: PrivateEndpoint) -> dict[str, Any]:
    """Returns the declarations of a row that differ from those of the endpoint."""
    return {
        name: value
        for name in ("declared_region", "declared_zdr")
        if (value := getattr(row, name)) is not msgspec.UNSET and value != getattr(endpoint, name)
    }


def _new_price(row: _Row, endpoint: PrivateEndpoint) -> Price | None:
    """Returns the price of a row where it differs from the one in force."""
    price = _price(row)
    if price is None or _rates(price) == _rates(endpoint.price.price):
        return None
    return price


def _rates(price: Price) -> tuple[Decimal | None, ...]:
    return price.prompt, price.completion, price.cache_read, price.cache_write


def _draft(row: _Row) -> Draft:
    return Draft(
        model_permaslug=row.model_permaslug,
        provider_slug=row.provider_slug,
        upstream_model_id=row.upstream_model_id,
        base_url=row.base_url,
        declared_region=None if row.declared_region is msgspec.UNSET else row.declared_region,
        declared_zdr=None if row.declared_zdr is msgspec.UNSET else row.declared_zdr,
        price=_price(row),
    )


def _price(row: _Row) -> Price | None:
    if row.pricing is msgspec.UNSET:
        return None
    rates = msgspec.to_builtins(row.pricing)
    return Price(**{name: Decimal(text) for name, text in rates.items()})


def _pricing(price: Price) -> _Pricing:
    def optional(rate: Decimal | None) -> str | msgspec.UnsetType:
        return msgspec.UNSET if rate is None else decimal_text(rate)

    return _Pricing(
        prompt=decimal_text(price.prompt),
        completion=decimal_text(price.completion),
        cache_read=optional(price.cache_read),
        cache_write=optional(price.cache_write),
    )
