"""Says what a transition will do to the traffic, before an operator confirms it.

The traffic is that of the last hour. Where its requests would go instead is what routing itself
selects for the busiest keys and models. Everything is bounded: rows, routes, the time of the
statements and the time that routing takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from django.db.models import Model, Q

from accounts.models import ApiKey, ByokCredential, Guardrail, Organization, Preset
from catalog.models import LanguageModel, ModelEndpoint, Provider
from config.api.text import parse_uuid
from config.clocks.clock import clock
from config.console.formatting import short_dollars
from config.console.lists.pages import TookTooLong, limit_time
from endpoints.models import PrivateEndpoint
from inference.models import Generation
from inference.reports.usage.reroutes import Row, count_noun, foresee_routes

_SPAN: Final = timedelta(hours=1)
_MOST_ROWS: Final = 10_000
_MOST_MILLISECONDS: Final = 2_000
_MOST_NAMED: Final = 3
_NOBODY: Final = UUID(int=0)
_COLUMNS: Final = (
    "api_key_id", "organization_id", "model", "operation", "cost_nano", "prompt_tokens",
    "completion_tokens",
)  # fmt: skip
# What an operator takes out of the catalogue, and the column by which endpoints name it.
_CATALOGUE: Final[tuple[tuple[type[Model], str], ...]] = (
    (Provider, "provider"),
    (LanguageModel, "model"),
    (ModelEndpoint, "pk"),
)
_TOO_MUCH: Final = "Its traffic of the last hour cannot be read in two seconds."


def foresee_key(object_id: str) -> list[str]:
    """Returns what happens when a key is paused or revoked."""
    key = _find(ApiKey.objects.all(), object_id)
    if key is None:
        return []
    return [describe_traffic(_read({"api_key": key})), "Such requests will get 401."]


def foresee_keys(ids: Sequence[Any]) -> list[str]:
    """Returns what happens when several keys are paused or revoked."""
    rows = _read({"api_key__in": ids})
    return [
        f"{count_noun(len(ids), 'key')}{_describe_owners(ApiKey, ids)}.",
        describe_traffic(rows, them=True),
        "Such requests will get 401.",
    ]


def foresee_suspension(object_id: str) -> list[str]:
    """Returns what happens when an organization is suspended."""
    found = _find(Organization.objects.all(), object_id)
    if found is None:
        return []
    rows = _read({"organization": found})
    keys = len({row["api_key_id"] for row in rows or ()})
    return [
        f"{describe_traffic(rows)} {count_noun(keys, 'key')} sent them.",
        "Such requests will get 403 and the reason.",
    ]


def foresee_endpoint(object_id: str) -> list[str]:
    """Returns what happens when a private endpoint is disabled or removed."""
    found = _find(PrivateEndpoint.objects.select_related("price"), object_id)
    if found is None:
        return []
    sent = _read({"organization": found.organization_id, "private_endpoint": found.pk})
    return [
        describe_traffic(sent),
        *foresee_routes(sent or (), {found.pk}, price=found.price.price),
    ]


def foresee_endpoints(ids: Sequence[Any]) -> list[str]:
    """Returns what happens when several private endpoints are disabled or removed."""
    owners = PrivateEndpoint.objects.filter(pk__in=ids).values_list("organization_id", flat=True)
    sent = _read({"organization__in": set(owners), "private_endpoint__in": ids})
    return [
        f"{count_noun(len(ids), 'endpoint')}{_describe_owners(PrivateEndpoint, ids)}.",
        describe_traffic(sent, them=True),
        *foresee_routes(sent or (), set(ids)),
    ]


def foresee_credential(object_id: str) -> list[str]:
    """Returns what a credential is used for, before it is deleted or replaced.

    Generations do not store which credential paid, so the traffic is that of its provider.
    """
    found = _find(ByokCredential.objects.all(), object_id)
    if found is None:
        return []
    provider = Provider.objects.filter(slug=found.provider_slug).first()
    name = found.provider_slug if provider is None else provider.name
    columns: dict[str, Any] = {
        "organization": found.organization_id, "is_byok": True, "provider_name": name,
    }  # fmt: skip
    owner = "organization"
    if found.workspace_id is not None:
        columns["workspace"] = found.workspace_id
        owner = "workspace"
    return [
        f"The {owner} may have other credentials for {name}; their traffic is counted together.",
        describe_traffic(_read(columns), them=True),
    ]


def foresee_guardrail(object_id: str) -> list[str]:
    """Returns which requests a guardrail limits, before it is deleted."""
    found = _find(Guardrail.objects.select_related("workspace"), object_id)
    if found is None:
        return []
    owner: dict[str, Any] = {"organization": found.organization_id}
    if found.workspace is not None and found.workspace.default_guardrail_id == found.pk:
        sent = _read({**owner, "workspace": found.workspace_id})
        return [f"It limits the whole workspace {found.workspace.name}.", describe_traffic(sent)]
    limited = ApiKey.objects.filter(
        Q(guardrail_assignment__guardrail=found)
        | Q(creator__guardrail_assignment__guardrail=found),
        **owner,
    )
    keys = list(limited.values_list("pk", flat=True))
    return [
        f"It limits {count_noun(len(keys), 'key')}, by assignment or by their creators.",
        describe_traffic(_read({**owner, "api_key__in": keys}) if keys else [], them=True),
    ]


def foresee_preset(object_id: str) -> list[str]:
    """Returns how much a preset is used, before it is deleted."""
    found = _find(Preset.objects.all(), object_id)
    if found is None:
        return []
    columns = {"organization": found.organization_id, "preset_id": found.pk}
    return [describe_traffic(_read(columns))]


def foresee_off(object_id: str) -> list[str]:
    """Returns what happens when a provider, a model or a public endpoint leaves the catalogue."""
    key = parse_uuid(object_id) or _NOBODY
    for model, column in _CATALOGUE:
        if model._default_manager.filter(pk=key).exists():
            return _foresee_off(model, {column: key})
    return []


def foresee_all_off(ids: Sequence[Any]) -> list[str]:
    """Returns what happens when several rows of one kind leave the catalogue."""
    for model, column in _CATALOGUE:
        if model._default_manager.filter(pk__in=ids).exists():
            name = count_noun(len(ids), str(model._meta.verbose_name))
            return [f"{name}.", *_foresee_off(model, {f"{column}__in": ids}, them=True)]
    return []


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
    listed = ModelEndpoint.objects.routable().filter(**where)
    endpoints = set(listed.values_list("pk", flat=True))
    served, own = Q(model_endpoint__in=endpoints), set[UUID]()
    told = [f"{count_noun(len(endpoints), 'endpoint')} in use, of all organizations."]
    if model is LanguageModel:
        own = set(PrivateEndpoint.objects.routable().filter(**where).values_list("pk", flat=True))
    if own:
        served |= Q(private_endpoint__in=own)
        told.append(f"{count_noun(len(own), 'private endpoint')} will get no requests either.")
    sent = _read({}, served) if endpoints or own else []
    organizations = {row["organization_id"] for row in sent or ()}
    of_whom = f" Of {count_noun(len(organizations), 'organization')}." if organizations else ""
    return [
        *told,
        f"{describe_traffic(sent, them=them)}{of_whom}",
        *foresee_routes(sent or (), endpoints | own),
    ]


def _find(rows: Any, object_id: str) -> Any:
    return rows.filter(pk=parse_uuid(object_id) or _NOBODY).first()


def _describe_owners(model: type[Model], ids: Collection[Any]) -> str:
    """Returns the organizations of rows, by name while there are few."""
    owners: set[UUID] = set(
        model._default_manager.filter(pk__in=ids).values_list("organization_id", flat=True)
    )
    if len(owners) > _MOST_NAMED:
        return f" of {len(owners):,} organizations"
    names = Organization.objects.filter(pk__in=owners).values_list("name", flat=True)
    return f" of {', '.join(sorted(names))}" if owners else ""


def _read(columns: dict[str, Any], *conditions: Q) -> list[Row] | None:
    """Returns the latest generations of the last hour; ``None`` if that takes too long."""
    rows = Generation.objects.created(clock.now() - _SPAN).filter(*conditions, **columns)
    try:
        with limit_time(rows, _MOST_MILLISECONDS):
            return list(rows.order_by("-created_at").values(*_COLUMNS)[:_MOST_ROWS])
    except TookTooLong:
        return None
