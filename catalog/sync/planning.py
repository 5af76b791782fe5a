"""Plans what a price list changes in the catalogue, and what of it waits for a person."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any, Final, TypeAlias

import msgspec

from catalog.models import CatalogProposal, LanguageModel, ModelEndpoint, Provider
from catalog.pricing import Price
from catalog.pricing.rules import KINDS, Billable
from catalog.rows import (
    EndpointRow,
    ModelRow,
    ProviderRow,
    endpoint_key,
    endpoint_row,
    find_endpoint_problems,
    find_model_problems,
    price_of,
)
from catalog.sync.offers import FREE, ListOffer, PriceList, offer_key
from catalog.sync.plans.comparing import UNPRICED, Change, find_changes

Reason: TypeAlias = CatalogProposal.Reason

# A new row with a rate per token at or above this waits: 1,000 USD per million tokens.
_HIGHEST: Final = Decimal("0.001")
_COMPLETION: Final = (Billable.COMPLETION, "")
_PICTURE: Final = (Billable.IMAGE, "")
_IMAGE_INPUT: Final = (Billable.IMAGE, "input")
_SOUND: Final = frozenset(
    (_COMPLETION, (Billable.COMPLETION, "audio"), (Billable.CHARACTER, ""), (Billable.SECOND, ""))
)
# The kinds of which one must be charged, for each output that a model generates.
_GENERATED: Final[Mapping[str, frozenset[tuple[Billable, str]]]] = {
    "text": frozenset((_COMPLETION,)),
    "image": frozenset((_COMPLETION, (Billable.COMPLETION, "image"), _PICTURE)),
    "audio": _SOUND,
    "speech": _SOUND,
    "video": frozenset((_COMPLETION, _PICTURE, (Billable.SECOND, ""), (Billable.REQUEST, ""))),
}
# More tokens than any prompt has, so that every tier counts.
_ANY_PROMPT: Final = 10**12
_LIMITS: Final = ("context_length", "max_completion_tokens")


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One endpoint that a list changes, adds or no longer has.

    ``waits`` says that a person must decide. ``row`` is ``None`` for an endpoint to delist;
    ``model`` and ``provider`` are rows that the endpoint needs and the catalogue lacks. ``basis``
    is the digest of the stored endpoint.
    """

    subject: str
    reason: Reason
    changes: list[Change]
    waits: bool
    row: EndpointRow | None = None
    model: ModelRow | None = None
    provider: ProviderRow | None = None
    endpoint: ModelEndpoint | None = None
    basis: str = ""

    @property
    def risk(self) -> str:
        """The first reason to look twice; empty for an ordinary change."""
        if self.endpoint is None:
            return UNPRICED if self.reason is Reason.UNPRICED else ""
        return next((change.risk for change in self.changes if change.risk), "")


@dataclass(slots=True)
class ListPlan:
    """What a list changes: the rows that differ, and the number of those that do not.

    ``found`` counts what of the list cannot be used or is ignored.
    """

    source: str
    as_of: date
    found: PriceList = field(default_factory=PriceList)
    rows: list[PlannedRow] = field(default_factory=list)
    unchanged: int = 0


def digest_of(endpoint: ModelEndpoint) -> str:
    """Returns the digest of everything that a catalogue file says about an endpoint."""
    return hashlib.sha256(msgspec.json.encode(endpoint_row(endpoint))).hexdigest()


def stored_endpoints() -> Any:
    """Returns the endpoints with their rows, which :func:`imports.lock_catalogue` has locked."""
    return ModelEndpoint.objects.select_related("model", "provider", "price").order_by("pk")


def make_plan(
    found: PriceList, *, source: str, as_of: date, rise_limit: Decimal, adds_rows: bool = True
) -> ListPlan:
    """Compares a list with the catalogue, inside a transaction; ``adds_rows`` plans new rows too.

    A row that an operator has set, or that another list has, is never changed without a person.
    """
    plan = ListPlan(source, as_of, found)
    planner = _Planner(plan, rise_limit)
    known = set()
    for endpoint in stored_endpoints():
        offer = found.offers.get(offer_key(endpoint.provider.slug, endpoint.upstream_model_id))
        if offer is not None:
            known.add(offer.key)
        if endpoint.is_listed and endpoint.provider.is_listed and endpoint.model.is_listed:
            planner.compare(endpoint, offer)
    rest = [offer for key, offer in found.offers.items() if key not in known]
    if adds_rows:
        planner.add_rows(rest)
    else:
        found.ignored += len(rest)
    return plan


class _Planner:
    """Plans one list: compares stored endpoints, then adds those that the catalogue lacks."""

    def __init__(self, plan: ListPlan, rise_limit: Decimal) -> None:
        self._plan = plan
        self._rise_limit = rise_limit

    def compare(self, endpoint: ModelEndpoint, offer: ListOffer | None) -> None:
        """Plans the change of a stored endpoint, or its end if the list no longer has it."""
        plan = self._plan
        is_own = endpoint.source == plan.source
        if offer is None:
            if is_own:
                gone = [Change("is_listed", "yes", "no")]
                self._add_stored(endpoint, None, gone, Reason.VANISHED, waits=True)
            return
        present = endpoint_row(endpoint)
        try:
            wanted = _replace_offered(present, offer)
        except _Refused as exc:
            plan.found.refuse(offer.name, str(exc))
            return
        changes = find_changes(*(_comparable(row) for row in (present, wanted)))
        if not changes:
            plan.unchanged += 1
            return
        price, outputs = price_of(wanted), endpoint.model.output_modalities
        reason = self._judge(changes, price, is_charged=charges_output(price, outputs))
        changes += _name_uncharged(offer)
        self._add_stored(
            endpoint, wanted, changes, reason, waits=reason is not Reason.CHANGE or not is_own
        )

    def _add_stored(
        self,
        endpoint: ModelEndpoint,
        row: EndpointRow | None,
        changes: list[Change],
        reason: Reason,
        *,
        waits: bool,
    ) -> None:
        subject = " ".join(endpoint_key(endpoint_row(endpoint)))
        basis = digest_of(endpoint)
        self._plan.rows.append(
            PlannedRow(subject, reason, changes, waits, row=row, endpoint=endpoint, basis=basis)
        )

    def _judge(self, changes: list[Change], price: Price, *, is_charged: bool) -> Reason:
        """Returns the first reason for which a change waits, or that it is an ordinary one."""
        has_rates = any(change.is_rate for change in changes)
        if price.is_free and has_rates:
            return Reason.UNPRICED
        if any(change.rises_above(self._rise_limit) for change in changes):
            return Reason.RISE
        if any(change.falls_far for change in changes):
            return Reason.FALL
        return Reason.CHANGE if is_charged or not has_rates else Reason.UNPRICED

    def add_rows(self, offers: Iterable[ListOffer]) -> None:
        """Plans the endpoints that the catalogue lacks, at providers that it has.

        An endpoint of a model that the catalogue has waits: it would take requests from the
        model's present endpoints, which may be somebody's own.
        """
        providers = {provider.slug: provider for provider in Provider.objects.all()}
        own = {row["slug"]: row for row in self._plan.found.providers}
        models = LanguageModel.objects.values_list("slug", "canonical_slug")
        permanent = dict(models)
        permanent |= {canonical: canonical for canonical in permanent.values()}
        planned: set[str | None] = set()
        for offer in offers:
            stored = providers.get(offer.provider)
            is_open = stored.is_listed if stored is not None else offer.provider in own
            facts = offer.model or {}
            # Variants of a model share its permanent slug: the first one is the model.
            names = {facts.get("id"), facts.get("canonical_slug")}
            if offer.model is None or not is_open or names & planned:
                self._plan.found.ignored += 1
                continue
            try:
                row = self._plan_new(offer, permanent, None if stored else own[offer.provider])
            except _Refused as exc:
                self._plan.found.refuse(offer.name, str(exc))
                continue
            planned |= names
            self._plan.rows.append(row)

    def _plan_new(
        self, offer: ListOffer, permanent: Mapping[str, str], provider: Mapping[str, Any] | None
    ) -> PlannedRow:
        facts = offer.model or {}
        model = _convert(facts, ModelRow)
        problems = find_model_problems(model)
        known = permanent.get(model.id) or permanent.get(model.canonical_slug)
        row = _convert(
            {
                "model": known or model.canonical_slug,
                "provider": offer.provider,
                "upstream_model_id": offer.upstream_model_id,
                "pricing": offer.pricing or FREE,
                **({"lines": list(offer.lines)} if offer.lines else {}),
                **{name: getattr(offer, name) for name in _LIMITS},
                "supported_parameters": model.supported_parameters,
            },
            EndpointRow,
        )
        problems += find_endpoint_problems(row)
        if problems:
            raise _Refused("; ".join(problems))
        changes = [
            change
            for change in find_changes({}, _comparable(row))
            if change.is_rate or change.column in _LIMITS
        ]
        reason = Reason.NEW
        if not charges_output(price_of(row), model.architecture.output_modalities):
            reason = Reason.UNPRICED
        elif _find_highest_rate(price_of(row)) >= _HIGHEST:
            reason = Reason.RISE
        elif offer.is_unclear and not known:
            reason = Reason.UNCLEAR
        return PlannedRow(
            " ".join(endpoint_key(row)),
            reason,
            [*changes, *_name_uncharged(offer)],
            waits=known is not None or reason is not Reason.NEW,
            row=row,
            model=None if known else model,
            provider=None if provider is None else _convert(provider, ProviderRow),
        )


def charges_output(price: Price, outputs: Iterable[str]) -> bool:
    """Returns whether each generated output has a price, whatever else costs something.

    Vectors, rankings and transcripts have none, and speech may be priced by its text or its length:
    for those, any price counts. It must have one at every hour and for every prompt.
    """
    base = price.base
    cases = {rule.conditions: base for rule in price.rules} | {None: base}
    for rule in price.rules:
        if rule.conditions is not None:
            cases[rule.conditions] = cases[rule.conditions] | {rule.name: rule.price}
    generated = [_GENERATED[output] for output in outputs if output in _GENERATED]
    return not price.is_free and all(
        any(
            amount > 0 and (name in names or (name[0] is Billable.IMAGE and _PICTURE in names))
            for name, amount in amounts.items()
            if name != _IMAGE_INPUT
        )
        for names in generated
        for amounts in cases.values()
    )


def _name_uncharged(offer: ListOffer) -> list[Change]:
    """Returns what a plan says of the prices of an offer that we cannot charge."""
    return [Change("uncharged", None, price) for price in offer.uncharged]


def _find_highest_rate(price: Price) -> Decimal:
    """Returns the highest rate of a token, under any condition."""
    tokens = (kind for kind in KINDS if kind.unit == "token")
    return max(price.highest(*kind.name, _ANY_PROMPT) for kind in tokens)


class _Refused(Exception):
    """A row that the catalogue does not accept; the message is ours or msgspec's."""


def _comparable(row: EndpointRow) -> dict[str, Any]:
    """Returns the columns of a row that a list decides."""
    columns: dict[str, Any] = msgspec.to_builtins(row)
    return {name: columns.get(name) for name in ("pricing", "lines", *_LIMITS)}


def _replace_offered(row: EndpointRow, offer: ListOffer) -> EndpointRow:
    """Returns a row with what the offer states: the whole price, and the limits that it has."""
    stated = _LIMITS if offer.has_limits else ()
    limits = {name: value for name in stated if (value := getattr(offer, name)) is not None}
    members = {
        **msgspec.to_builtins(row),
        **limits,
        "pricing": offer.pricing or FREE,
    }
    # The origin becomes that of the list.
    for name in ("lines", "source", "as_of"):
        members.pop(name, None)
    if offer.lines:
        members["lines"] = [_keep_bound(line, row) for line in offer.lines]
    replaced: EndpointRow = _convert(members, EndpointRow)
    if problems := find_endpoint_problems(replaced):
        raise _Refused("; ".join(problems))
    return replaced


def _keep_bound(line: Mapping[str, Any], row: EndpointRow) -> dict[str, Any]:
    """Returns a line with the bound of the stored one, which an operator may have set."""
    names = ("billable", "variant")
    for stored in row.lines or ():
        if stored.most and all(getattr(stored, name) == line.get(name) for name in names):
            return {**line, "most": stored.most}
    return {**line}


def _convert(members: Mapping[str, Any], shape: type[Any]) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(members), type=shape)
    except (msgspec.DecodeError, UnicodeEncodeError) as exc:
        raise _Refused(str(exc)) from None
