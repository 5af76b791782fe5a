"""Imports and exports private endpoints: JSON lines of the create request, without ``activate``.

A line names an endpoint by model, provider, ``upstream_model_id`` and ``base_url``. If the
organization has no such endpoint, the import creates a draft. If the endpoint is a draft, the
import changes its values to those of the line. For an endpoint that was ever activated, a line with
other values is refused, because an import makes no transition. An absent member leaves the stored
value unchanged. A line with a ``model`` makes the organization's own model of its slug, unless that
exists with these members.

An organization may have registered the same endpoint several times. Then the first line with these
four members names the oldest of them, the second line the next one, and so on; lines beyond the
last one are refused.
"""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from django.db import transaction

from accounts.models import Organization
from accounts.policy import Fallback
from catalog.abilities import DeclaredParameter
from catalog.pricing import Price
from catalog.pricing.contract import InvalidPricing, Lines
from catalog.rows import Timeouts, limits_of, pricing_members, timeouts_of
from catalog.sync.plans.columns import (
    find_column_changes,
    find_price_changes,
    list_columns,
    list_terms,
)
from catalog.sync.plans.comparing import Change
from config.api.errors import GatewayError
from config.api.text import CONTROL_CHARACTERS
from config.bulk.problems import ImportRefused, Problems
from config.bulk.report import Report, RowListener, RowOutcome
from config.bulk.rows import decode_lines, parse_json_rows
from config.egress.rules import NO_OWN_LIMITS
from config.models import time_columns
from endpoints.models import Draft, ModelExists, NewModel, PrivateEndpoint, canonical_base_url
from endpoints.models.settings import apply_settings, order_parameters, require_tools
from endpoints.pricing import EndpointPricing, read_endpoint_price, render_endpoint_pricing

KIND: Final = "private_endpoints"
ACTOR: Final = "import_private_endpoints"
_CHUNK: Final = 2000

_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
_URL = Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]

# The discount of a price is a number.
encode = msgspec.json.Encoder(decimal_format="number").encode

# A line states these, so that no endpoint copies others.
_NOT_COPIED: Final = {
    "context_length": None, "max_prompt_tokens": None, "max_completion_tokens": None,
    "quantization": "unknown",
}  # fmt: skip

_Key: TypeAlias = tuple[str, str, str, str]


class _ModelRow(msgspec.Struct, forbid_unknown_fields=True):
    name: _Text
    base_model: _Text | None = None


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    model_permaslug: _Text
    provider_slug: _Text
    upstream_model_id: _Text
    base_url: _URL | None = None
    declared_region: Literal["global", "europe", "us"] | msgspec.UnsetType | None = msgspec.UNSET
    declared_zdr: bool | msgspec.UnsetType | None = msgspec.UNSET
    pricing: EndpointPricing | msgspec.UnsetType | None = msgspec.UNSET
    lines: Lines | msgspec.UnsetType | None = msgspec.UNSET
    timeouts: Timeouts | msgspec.UnsetType | None = msgspec.UNSET
    settings: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    declared_parameters: list[DeclaredParameter] | msgspec.UnsetType = msgspec.UNSET
    model: _ModelRow | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def fallback(self) -> str | msgspec.UnsetType | None:
        stated = self.settings if isinstance(self.settings, dict) else {}
        return stated.get("fallback", msgspec.UNSET)

    @property
    def own_settings(self) -> dict[str, Any]:
        stated = self.settings if isinstance(self.settings, dict) else {}
        return {name: value for name, value in stated.items() if name != "fallback"}

    @property
    def key(self) -> _Key:
        return (
            self.model_permaslug,
            self.provider_slug,
            self.upstream_model_id,
            self.base_url or "",
        )

    @property
    def text(self) -> str:
        parts = (self.model_permaslug, self.provider_slug, self.upstream_model_id, self.base_url)
        return " ".join(part for part in parts if part is not None)


@dataclass(frozen=True, slots=True)
class _Match:
    """A line of the file, the first line with its key, and the endpoint that it names, if any."""

    line: int
    first_line: int
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

    The organization's limit must have room for all created drafts. ``dry_run`` takes the same path
    and rolls back; ``on_row`` is called with the outcome of each row. Raises
    :class:`ImportRefused`.
    """
    report = Report.of_kinds(KIND, dry_run=dry_run)
    count = report.counter(on_row)
    problems = Problems()
    with transaction.atomic():
        rows = list(_rows(lines, organization_id, problems))
        lock_drafts(organization_id)
        # Other creations and edits wait for this lock, so the checks below still hold at the
        # writes.
        organization = Organization.objects.lock(organization_id)
        matches = _match_rows(organization_id, rows)
        _check(organization_id, matches, count, problems)
        problems.raise_if_any()
        try:
            PrivateEndpoint.objects.require_room(organization, report.created[KIND])
        except GatewayError as exc:
            raise ImportRefused([exc.message]) from None
        _write(organization_id, matches, problems, by)
        problems.raise_if_any()
        transaction.set_rollback(dry_run)
    return report


def lock_drafts(organization_id: uuid.UUID) -> None:
    """Locks what an import may change; the caller locks the organization after it."""
    drafts = PrivateEndpoint.objects.for_organization(organization_id)
    drafts.filter(status=PrivateEndpoint.Status.DRAFT).lock_in_order()


def has_endpoint(
    organization_id: uuid.UUID, model: str, provider: str, upstream_id: str, base_url: str = ""
) -> bool:
    """Tells whether an organization has the endpoint that a line with these members names."""
    row = _Row(model, provider, upstream_id, canonical_base_url(base_url or None, organization_id))
    return _match_rows(organization_id, [(1, row)])[0].endpoint is not None


def export(organization_id: uuid.UUID) -> Iterator[bytes]:
    """Yields the lines of a file, oldest endpoint first; :func:`apply` changes nothing for them."""
    # A server-side cursor needs a transaction.
    with transaction.atomic():
        endpoints = (
            PrivateEndpoint.objects.for_organization(organization_id)
            .select_related("model", "provider", "private_provider", "price")
            .order_by("created_at", "id")
        )
        for endpoint in endpoints.iterator(chunk_size=_CHUNK):
            row = _Row(
                model_permaslug=endpoint.model.canonical_slug,
                provider_slug=endpoint.upstream_provider.slug,
                upstream_model_id=endpoint.upstream_model_id,
                base_url=endpoint.base_url,
                declared_region=endpoint.declared_region,
                declared_zdr=endpoint.declared_zdr,
                timeouts=timeouts_of(endpoint.time_limits),
                settings=_settings_of(endpoint),
                declared_parameters=endpoint.declared_parameters or msgspec.UNSET,
                model=_model_of(endpoint),
                **price_members(endpoint.price.price),
            )
            yield encode(row) + b"\n"


def _rows(
    lines: Iterable[bytes], organization_id: uuid.UUID, problems: Problems
) -> Iterator[tuple[int, _Row]]:
    for line, row in parse_json_rows(decode_lines(lines, problems), _Row, problems):
        found = _problems_of(row)
        try:
            row.base_url = canonical_base_url(row.base_url, organization_id)
        except GatewayError as exc:
            found.append(exc.message)
        for text in found:
            problems.add(line, text)
        if not found:
            yield line, row


def _problems_of(row: _Row) -> list[str]:
    found = [
        f"{name} must not contain control characters"
        for name in ("model_permaslug", "provider_slug")
        if CONTROL_CHARACTERS.search(getattr(row, name))
    ]
    if isinstance(row.pricing, EndpointPricing):
        try:
            _price(row)
        except InvalidPricing as exc:
            found += [f"{path} {text}" for path, text in exc.problems]
    elif row.lines:
        found.append("lines need the pricing object beside them")
    if row.fallback not in (msgspec.UNSET, None, *Fallback):
        found.append(f"settings.fallback must be null or one of {', '.join(Fallback)}")
    if not found:
        try:
            _draft(row).check_alone()
        except GatewayError as exc:
            found.append(exc.message)
    return found


def _match_rows(organization_id: uuid.UUID, rows: list[tuple[int, _Row]]) -> list[_Match]:
    """Returns each row with its endpoint; the n-th row with a key names the n-th endpoint."""
    stored: dict[_Key, deque[PrivateEndpoint]] = defaultdict(deque)
    endpoints = PrivateEndpoint.objects.for_organization(organization_id)
    for endpoint in endpoints.select_related(
        "model", "provider", "private_provider", "price"
    ).order_by("created_at", "id"):
        stored[_key_of(endpoint)].append(endpoint)
    first_lines: dict[_Key, int] = {}
    matches = []
    for line, row in rows:
        first_line = first_lines.setdefault(row.key, line)
        named = stored[row.key]
        matches.append(_Match(line, first_line, row, named.popleft() if named else None))
    return matches


def _check(
    organization_id: uuid.UUID, matches: list[_Match], count: RowListener, problems: Problems
) -> None:
    """Decides the outcome of each row, and collects the problems."""
    drafts = [_draft(match.row) for match in matches]
    prices = PrivateEndpoint.objects.price_drafts(organization_id, drafts)
    made: dict[str, _Match] = {}
    for match, draft, price in zip(matches, drafts, prices, strict=True):
        row, endpoint = match.row, match.endpoint
        first = made.setdefault(row.model_permaslug, match) if row.model else match
        if row.model != first.row.model:
            problems.add(match.line, f"model: line {first.line} makes it with other members")
            continue
        if isinstance(price, ModelExists):
            problems.add(match.line, price.message)
            continue
        if endpoint is None:
            if match.line != match.first_line:
                problems.add(match.line, f"the same endpoint as line {match.first_line}")
            elif isinstance(price, GatewayError):
                problems.add(match.line, price.message)
            else:
                count(KIND, row.text, RowOutcome.CREATE, _list_terms(draft, price))
            continue
        try:
            is_equal = not _changes(row, endpoint) and _new_price(row, endpoint) is None
        except GatewayError as exc:
            problems.add(match.line, exc.message)
            continue
        if is_equal:
            count(KIND, row.text, RowOutcome.UNCHANGED)
        elif endpoint.status == PrivateEndpoint.Status.DRAFT:
            count(KIND, row.text, RowOutcome.UPDATE, _list_changes(row, endpoint))
        else:
            problems.add(
                match.line, f"the endpoint is {endpoint.status}; only a draft can be changed"
            )


def _write(organization_id: uuid.UUID, matches: list[_Match], problems: Problems, by: str) -> None:
    """Creates and updates the endpoints of the rows that passed :func:`_check`."""
    fresh = [_draft(match.row) for match in matches if match.endpoint is None]
    if fresh:
        PrivateEndpoint.objects.create_drafts(organization_id=organization_id, drafts=fresh, by=by)
    for match in matches:
        if match.endpoint is None:
            continue
        changes = _changes(match.row, match.endpoint)
        price = _new_price(match.row, match.endpoint)
        if price is not None:
            changes["price"] = price
        if "settings" in changes:
            changes["settings"] = match.row.own_settings
        if not changes:
            continue
        try:
            match.endpoint.lock_present()
            match.endpoint.require_status(PrivateEndpoint.Status.DRAFT)
            match.endpoint.edit(by=by, **changes)
        except GatewayError as exc:
            # A transition took place after the check.
            problems.add(match.line, exc.message)


def _changes(row: _Row, endpoint: PrivateEndpoint) -> dict[str, Any]:
    """Returns the declarations and settings of a row that differ from those of the endpoint."""
    changes = {
        name: value
        for name in ("declared_region", "declared_zdr", "fallback")
        if (value := getattr(row, name)) is not msgspec.UNSET and value != getattr(endpoint, name)
    }
    if row.timeouts is not msgspec.UNSET:
        limits = limits_of(row.timeouts)
        if limits != endpoint.time_limits:
            changes["time_limits"] = limits
    if row.own_settings:
        merged = apply_settings(
            endpoint.settings,
            row.own_settings,
            model=endpoint.model,
            tested=endpoint.tested_parameters,
        )
        if merged != endpoint.settings:
            changes["settings"] = merged
    if row.declared_parameters is not msgspec.UNSET:
        declared = order_parameters(row.declared_parameters)
        if declared != endpoint.declared_parameters:
            require_tools(declared, endpoint.tested_parameters)
            changes["declared_parameters"] = declared
    return changes


def _list_terms(draft: Draft, price: Price) -> list[Change]:
    """Returns what a plan shows of a new draft."""
    stated = {name: getattr(draft, name) for name in ("upstream_model_id", "base_url", "fallback")}
    return [*list_terms(price, draft.settings or {}), *list_columns(stated, stated)]


def _list_changes(row: _Row, endpoint: PrivateEndpoint) -> list[Change]:
    """Returns what a plan shows of a row that changes its endpoint."""
    changes = _changes(row, endpoint)
    limits = changes.pop("time_limits", None)
    columns = changes if limits is None else {**changes, **time_columns(limits)}
    price = _new_price(row, endpoint)
    found = [] if price is None else find_price_changes(endpoint.price.price, price)
    return [*found, *find_column_changes(endpoint, columns)]


def _new_price(row: _Row, endpoint: PrivateEndpoint) -> Price | None:
    """Returns the price of a row if it differs from the one in force."""
    price = _price(row)
    if price is None or price == endpoint.price.price:
        return None
    return price


def _key_of(endpoint: PrivateEndpoint) -> _Key:
    return (
        endpoint.model.canonical_slug,
        endpoint.upstream_provider.slug,
        endpoint.upstream_model_id,
        endpoint.base_url or "",
    )


def _draft(row: _Row) -> Draft:
    return Draft(
        model_permaslug=row.model_permaslug,
        provider_slug=row.provider_slug,
        upstream_model_id=row.upstream_model_id,
        base_url=row.base_url,
        declared_region=None if row.declared_region is msgspec.UNSET else row.declared_region,
        declared_zdr=None if row.declared_zdr is msgspec.UNSET else row.declared_zdr,
        price=_price(row),
        time_limits=NO_OWN_LIMITS if row.timeouts is msgspec.UNSET else limits_of(row.timeouts),
        fallback=None if row.fallback is msgspec.UNSET else row.fallback,
        settings=row.own_settings,
        declared_parameters=row.declared_parameters or (),
        model=NewModel(row.model.name, row.model.base_model) if row.model else None,
    )


def _model_of(endpoint: PrivateEndpoint) -> _ModelRow | msgspec.UnsetType:
    """Returns the member that makes the model of an endpoint, if that is the organization's own."""
    model = endpoint.model
    if model.organization_id is None:
        return msgspec.UNSET
    return _ModelRow(model.name, model.base_model or None)


def _settings_of(endpoint: PrivateEndpoint) -> dict[str, Any]:
    """Returns the settings of a row; what they leave out, a new endpoint copies."""
    fallback = {} if endpoint.fallback is None else {"fallback": endpoint.fallback}
    return {**_NOT_COPIED, **endpoint.settings, **fallback}


def _price(row: _Row) -> Price | None:
    if not isinstance(row.pricing, EndpointPricing):
        return None
    lines = () if row.lines is msgspec.UNSET or row.lines is None else row.lines
    return read_endpoint_price(row.pricing, lines)


def price_members(price: Price) -> dict[str, Any]:
    return pricing_members(price, render_endpoint_pricing, EndpointPricing)
