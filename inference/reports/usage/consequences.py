"""Says what a transition will do to the traffic, before an operator confirms it.

The traffic is that of the last hour. Where its requests would go instead is what routing itself
selects for the busiest keys and models. Everything is bounded: rows, routes, the time of the
statements and the time that routing takes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django.db.models import Model, Q, QuerySet, Value
from django.db.models.fields.json import KT

from accounts.models import ApiKey, ByokCredential, Guardrail, Organization, Preset
from accounts.serializers.credentials import find_provider
from catalog.models import LanguageModel, ModelEndpoint, Provider
from catalog.pricing import Price
from config.api.errors import GatewayError
from config.clocks.clock import clock
from config.console.formatting import short_dollars
from config.console.lists.pages import TookTooLong, limit_time
from endpoints.models import PrivateEndpoint
from inference.admission.explain import Explainer
from inference.faces.explaining import BODIES, PATHS, read_request
from inference.models import Generation

_SPAN: Final = timedelta(hours=1)
_MOST_ROWS: Final = 10_000
_MOST_MILLISECONDS: Final = 2_000
_MOST_NAMED: Final = 3
_COLUMNS: Final = (
    "api_key_id", "organization_id", "model", "operation", "cost_nano", "prompt_tokens",
    "completion_tokens",
)  # fmt: skip
# The own credential of the last attempt.
_PAYER: Final = "attempts__-1__credential_id"
# What an operator takes out of the catalogue, and the column by which endpoints name it.
_COLUMN_OF: Final[Mapping[type[Model], str]] = {
    Provider: "provider", LanguageModel: "model", ModelEndpoint: "pk",
}  # fmt: skip
_TOO_MUCH: Final = "Its traffic of the last hour cannot be read in two seconds."

Row = dict[str, Any]
"""The columns of a generation by their names."""
_Route = tuple[UUID, str, str]
"""The key, the model and the operation of requests."""
_MOST_ROUTES: Final = 10
_MOST_SECONDS: Final = 1.0
_RATES: Final = ("prompt", "completion", "request")
_NOWHERE: Final = "nothing else may serve them; they will get 404."
_UNKNOWN: Final = "they may go elsewhere or get 404."
_TOO_MUCH_TO_ROUTE: Final = (
    "Where they would go instead is not known: the rules of their keys cannot be read in two "
    "seconds."
)


@dataclass(slots=True)
class _Fate:
    """What happens to the requests of some routes, and what they cost before and afterwards."""

    keys: dict[UUID, str] = field(default_factory=dict)
    requests: int = 0
    now: Decimal = Decimal(0)
    then: Decimal = Decimal(0)

    def describe(self, text: str) -> str:
        names = list(self.keys.values())
        whose = f"the key {names[0]}" if len(names) == 1 else count_noun(len(names), "key")
        change = f", price {(self.then - self.now) / self.now:+.0%}." if self.now else ""
        end = change or ("" if text.endswith(".") else ".")
        return f"{count_noun(self.requests, 'request')} of {whose}: {text}{end}"


@dataclass(frozen=True, slots=True)
class _Rules:
    """The keys of the busiest requests, and an explainer that has read all rules of theirs."""

    routes: Mapping[_Route, Sequence[Row]]
    keys: Mapping[UUID, ApiKey]
    explainer: Explainer


def foresee_key(key: ApiKey) -> list[str]:
    """Returns what happens when a key is paused or revoked."""
    return [describe_traffic(_read({"api_key": key})), "Such requests will get 401."]


def foresee_keys(model: type[Model], ids: Sequence[Any]) -> list[str]:
    """Returns what happens when several keys are paused or revoked."""
    rows = _read({"api_key__in": ids})
    return [
        f"{count_noun(len(ids), 'key')}{_describe_owners(model, ids)}.",
        describe_traffic(rows, them=True),
        "Such requests will get 401.",
    ]


def foresee_suspension(organization: Organization) -> list[str]:
    """Returns what happens when an organization is suspended."""
    rows = _read({"organization": organization})
    keys = len({row["api_key_id"] for row in rows or ()})
    return [
        f"{describe_traffic(rows)} {count_noun(keys, 'key')} sent them.",
        "Such requests will get 403 and the reason.",
    ]


def foresee_endpoint(endpoint: PrivateEndpoint) -> list[str]:
    """Returns what happens when a private endpoint is disabled or removed."""
    sent, rules = _read_with_rules(
        {"organization": endpoint.organization_id, "private_endpoint": endpoint.pk}
    )
    return [
        describe_traffic(sent),
        *_foresee_routes(sent or (), rules, {endpoint.pk}, price=endpoint.price.price),
    ]


def describe_end(endpoint: PrivateEndpoint) -> dict[str, Any]:
    """Describes the traffic of a private endpoint that was disabled or deleted, for its owner."""
    columns = {"organization": endpoint.organization_id, "private_endpoint": endpoint.pk}
    rows, rules = _read_with_rules(columns)
    total = None if rows is None else len(rows)
    if total == _MOST_ROWS:
        total = _count(columns)
    told = _foresee_routes(rows or (), rules, {endpoint.pk}, price=endpoint.price.price)
    return {
        "requests_last_hour": total,
        "then": " ".join((*told, _describe_privacy(endpoint))),
    }


def _describe_privacy(endpoint: PrivateEndpoint) -> str:
    """Says whether the model of a private endpoint stays private without it."""
    model = endpoint.model.slug
    others = PrivateEndpoint.objects.filter(
        organization=endpoint.organization_id, model=endpoint.model_id
    )
    if others.routable().exists():
        return f"Another private endpoint of {model} is active."
    if others.withdrawn().exists():
        return (
            f"{model} stays private until its owner releases it: a public endpoint serves only "
            "requests that name its provider in provider.order or provider.only, or that may fall "
            "back to any."
        )
    return f"{model} is not private."


def foresee_endpoints(model: type[Model], ids: Sequence[Any]) -> list[str]:
    """Returns what happens when several private endpoints are disabled or removed."""
    owners = PrivateEndpoint.objects.filter(pk__in=ids).values_list("organization_id", flat=True)
    sent, rules = _read_with_rules({"organization__in": set(owners), "private_endpoint__in": ids})
    return [
        f"{count_noun(len(ids), 'endpoint')}{_describe_owners(model, ids)}.",
        describe_traffic(sent, them=True),
        *_foresee_routes(sent or (), rules, set(ids)),
    ]


def foresee_credential(credential: ByokCredential) -> list[str]:
    """Returns what a credential is used for, before it is deleted or replaced.

    A generation names the credential of its last attempt once it has ended. Those that do not are
    counted apart: they run, or their worker died.
    """
    provider = find_provider(credential.organization_id, credential.provider_slug)
    name = credential.provider_slug if provider is None else provider.name
    unnamed = Q(payer__isnull=True, is_byok=True, provider_name=name)
    owner = "organization"
    if credential.workspace_id is not None:
        unnamed &= Q(workspace=credential.workspace_id)
        owner = "workspace"
    rows = _read(
        {"organization": credential.organization_id},
        Q(payer=str(credential.pk)) | unnamed,
        payer=KT(_PAYER),
    )
    if rows is None:
        return [describe_traffic(None)]
    own = [row for row in rows if row["payer"] is not None]
    told = [describe_traffic(own)]
    if others := len(rows) - len(own):
        told.append(
            f"{count_noun(others, 'more request')} for {name} do not name their credential: they "
            f"run, or their worker died. The {owner} may have others."
        )
    return told


def foresee_guardrail(guardrail: Guardrail) -> list[str]:
    """Returns which requests a guardrail limits, before it is deleted."""
    owner: dict[str, Any] = {"organization": guardrail.organization_id}
    workspace = guardrail.workspace
    if workspace is not None and workspace.default_guardrail_id == guardrail.pk:
        sent = _read({**owner, "workspace": workspace.pk})
        return [f"It limits the whole workspace {workspace.name}.", describe_traffic(sent)]
    limited = ApiKey.objects.filter(
        Q(guardrail_assignment__guardrail=guardrail)
        | Q(creator__guardrail_assignment__guardrail=guardrail),
        **owner,
    )
    keys = list(limited.values_list("pk", flat=True))
    return [
        f"It limits {count_noun(len(keys), 'key')}, by assignment or by their creators.",
        describe_traffic(_read({**owner, "api_key__in": keys}) if keys else [], them=True),
    ]


def foresee_preset(preset: Preset) -> list[str]:
    """Returns how much a preset is used, before it is deleted."""
    columns = {"organization": preset.organization_id, "preset_id": preset.pk}
    return [describe_traffic(_read(columns))]


def foresee_off(row: Provider | LanguageModel | ModelEndpoint) -> list[str]:
    """Returns what happens when a provider, a model or a public endpoint leaves the catalogue."""
    return _foresee_off(type(row), {_COLUMN_OF[type(row)]: row.pk})


def foresee_all_off(model: type[Model], ids: Sequence[Any]) -> list[str]:
    """Returns what happens when several rows of one kind leave the catalogue."""
    name = count_noun(len(ids), str(model._meta.verbose_name))
    return [f"{name}.", *_foresee_off(model, {f"{_COLUMN_OF[model]}__in": ids}, them=True)]


def describe_traffic(rows: Sequence[Row] | None, *, them: bool = False) -> str:
    """Returns the requests of the last hour and what they cost; ``None`` took too long to read."""
    subject = "They" if them else "It"
    if rows is None:
        return _TOO_MUCH
    if not rows:
        return f"{subject} had no requests in the last hour."
    spent = short_dollars(sum(row["cost_nano"] for row in rows))
    more = "at least " if len(rows) == _MOST_ROWS else ""
    return f"{subject} had {more}{count_noun(len(rows), 'request')} in the last hour, for {spent}."


def _foresee_off(model: type[Model], where: dict[str, Any], *, them: bool = False) -> list[str]:
    """Returns what happens without the listed endpoints that ``where`` finds.

    Without a model, the private endpoints of its name get no requests either.
    """
    endpoints, own = _find_endpoints(model, where)
    served = Q(model_endpoint__in=endpoints)
    told = [f"{count_noun(len(endpoints), 'endpoint')} in use, of all organizations."]
    if own:
        served |= Q(private_endpoint__in=own)
        told.append(f"{count_noun(len(own), 'private endpoint')} will get no requests either.")
    sent, rules = _read_with_rules({}, served) if endpoints or own else ([], None)
    organizations = {row["organization_id"] for row in sent or ()}
    of_whom = f" Of {count_noun(len(organizations), 'organization')}." if organizations else ""
    return [
        *told,
        f"{describe_traffic(sent, them=them)}{of_whom}",
        *_foresee_routes(sent or (), rules, endpoints | own),
    ]


def _find_endpoints(model: type[Model], where: dict[str, Any]) -> tuple[set[UUID], set[UUID]]:
    """Returns the public and the private endpoints that get no requests any more."""
    rows = ModelEndpoint.objects.routable().filter(**where).order_by()
    found = rows.values_list("pk", Value(False))
    if model is LanguageModel:
        own = PrivateEndpoint.objects.routable().filter(**where).order_by()
        found = found.union(own.values_list("pk", Value(True)), all=True)
    endpoints: dict[bool, set[UUID]] = {False: set(), True: set()}
    for key, is_private in found:
        endpoints[is_private].add(key)
    return endpoints[False], endpoints[True]


def _describe_owners(model: type[Model], ids: Collection[Any]) -> str:
    """Returns the organizations of rows, by name while there are few."""
    owners: set[UUID] = set(
        model._default_manager.filter(pk__in=ids).values_list("organization_id", flat=True)
    )
    if len(owners) > _MOST_NAMED:
        return f" of {len(owners):,} organizations"
    names = Organization.objects.filter(pk__in=owners).values_list("name", flat=True)
    return f" of {', '.join(sorted(names))}" if owners else ""


def _read(columns: dict[str, Any], *conditions: Q, **computed: Any) -> list[Row] | None:
    """Returns the latest generations of the last hour; ``None`` if that takes too long.

    ``computed`` are columns that the conditions may name, and that the rows have as well.
    """
    rows = _select(columns, *conditions, **computed)
    try:
        with limit_time(rows, _MOST_MILLISECONDS):
            return list(rows)
    except TookTooLong:
        return None


def _count(columns: dict[str, Any]) -> int | None:
    """Returns the number of generations of the last hour; ``None`` if counting takes too long."""
    rows: QuerySet[Any] = Generation.objects.created(clock.now() - _SPAN).filter(**columns)
    try:
        with limit_time(rows, _MOST_MILLISECONDS):
            return rows.count()
    except TookTooLong:
        return None


def _read_with_rules(
    columns: dict[str, Any], *conditions: Q
) -> tuple[list[Row] | None, _Rules | None]:
    """Returns what :func:`_read` does, and the rules by which requests would be routed again."""
    rows, found, rules = _select(columns, *conditions), None, None
    try:
        with limit_time(rows, _MOST_MILLISECONDS):
            found = list(rows)
            rules = _read_rules(found)
    except TookTooLong:
        pass
    return found, rules


def _select(columns: dict[str, Any], *conditions: Q, **computed: Any) -> QuerySet[Any]:
    created: QuerySet[Any] = Generation.objects.created(clock.now() - _SPAN)
    rows: QuerySet[Any] = created.annotate(**computed).filter(*conditions, **columns)
    return rows.order_by("-created_at").values(*_COLUMNS, *computed)[:_MOST_ROWS]


def _read_rules(rows: Sequence[Row]) -> _Rules | None:
    """Reads the rules of the busiest requests, those of all organizations together."""
    if not rows:
        return None
    routes: dict[_Route, list[Row]] = {}
    for row in rows:
        route = (row["api_key_id"], row["model"], row["operation"])
        routes.setdefault(route, []).append(row)
    busiest = sorted(routes, key=lambda route: -len(routes[route]))[:_MOST_ROUTES]
    explainer = Explainer()
    keys = explainer.load({key_id for key_id, _, _ in busiest})
    return _Rules({route: routes[route] for route in busiest}, keys, explainer)


def _foresee_routes(
    rows: Sequence[Row],
    rules: _Rules | None,
    endpoints: Collection[UUID],
    *,
    price: Price | None = None,
) -> list[str]:
    """Returns a sentence for each fate of the busiest requests once the endpoints are gone.

    ``rules`` are those of the rows; ``None`` took too long to read. ``price`` is what the requests
    cost now, by default what the first of these endpoints costs.
    """
    if not rows:
        return []
    if rules is None:
        return [_TOO_MUCH_TO_ROUTE]
    ends_at = time.monotonic() + _MOST_SECONDS
    gone, told = {str(each) for each in endpoints}, 0
    fates: dict[str, _Fate] = {}
    for route, sent in rules.routes.items():
        if time.monotonic() > ends_at:
            break
        key = rules.keys.get(route[0])
        told += len(sent)
        if key is not None and key.is_usable:
            text, now, then = _route_again(rules.explainer, key, route, sent, gone, price)
            fate = fates.setdefault(text, _Fate())
            fate.keys[key.pk] = key.name
            fate.requests += len(sent)
            fate.now += now
            fate.then += then
    found = [fate.describe(text) for text, fate in fates.items()]
    if (rest := len(rows) - told) > 0:
        text = count_noun(rest, "more request")
        found.append(f"{text} of other keys and models were not looked at.")
    return found


def _route_again(
    explainer: Explainer,
    key: ApiKey,
    route: _Route,
    rows: Sequence[Row],
    gone: Collection[str],
    price: Price | None,
) -> tuple[str, Decimal, Decimal]:
    """Returns where such requests would go, and what they cost now and there, in USD."""
    nothing = Decimal(0)
    _, model, operation = route
    if operation not in PATHS:
        return _UNKNOWN, nothing, nothing
    path = PATHS[operation]
    body = json.dumps({"model": model, **BODIES[path]}).encode()
    try:
        found = explainer.list_candidates(key, read_request(path, body), region=None)
    except GatewayError as exc:
        return f"they are refused already: {exc.message}", nothing, nothing
    others = [each for each in found if each["endpoint_id"] not in gone]
    if not others:
        return _NOWHERE, nothing, nothing
    first = others[0]
    paid = "a credential of the organization" if first["is_byok"] else "credits"
    text = f"they will go to {first['provider']} ({first['model']}), paid by {paid}"
    if price is not None:
        rates: Mapping[str, str] | None = {name: price.text(name) for name in _RATES}
    else:
        rates = next((each["price"] for each in found if each["endpoint_id"] in gone), None)
    if rates is None:
        return text, nothing, nothing
    return text, _price(rows, rates), _price(rows, first["price"])


def _price(rows: Iterable[Row], texts: Mapping[str, str]) -> Decimal:
    """Returns what the tokens of requests cost at plain rates, in USD."""
    rates = {name: Decimal(texts[name]) for name in _RATES}
    return sum(
        (
            (row["prompt_tokens"] or 0) * rates["prompt"]
            + (row["completion_tokens"] or 0) * rates["completion"]
            + rates["request"]
            for row in rows
        ),
        Decimal(0),
    )


def count_noun(number: int, noun: str) -> str:
    """Returns a number with its noun: ``1 key``, ``1,200 keys``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
