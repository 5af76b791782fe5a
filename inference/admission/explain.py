"""Explains where requests of keys would go, without sending them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from django.conf import settings
from django.db import connection
from django.db.models import F, Q

from accounts.bearers import require_active
from accounts.models import ApiKey, BroadcastDestination, Region
from accounts.policy import Policy, find_level, require_ingress_region
from billing.budgets import Budget, MeterReading
from billing.models import Account, Meter
from catalog.abilities import NO_POOL
from catalog.models import Provider
from catalog.pricing import usd
from config import sql
from config.api.errors import PaymentRequired
from config.clocks.clock import clock
from inference.admission.budgets import Budgets, LimitSpent
from inference.admission.copies.organizations import OrganizationCopy, load_organizations
from inference.admission.copies.whole import read_catalog_on_orm
from inference.admission.decide import BatchScreening, JudgedRequest, judge_shadow
from inference.admission.estimate import describe_bound, worst_case_nano
from inference.admission.governance import (
    Assignment,
    BudgetRule,
    KeyRules,
    WorkspaceRules,
    collect_budgets,
    limit_of,
)
from inference.requests.parsing import InferenceRequest
from inference.routing.candidates import RoutingContext, Selection, select_candidates
from inference.routing.health import Health, HealthTable, oldest_bucket
from inference.routing.needs import describe_needs
from inference.routing.pacing import oldest_pace
from inference.routing.ranking import weight_of
from inference.routing.routes import Candidate, Route
from inference.texts.rules import Obstacle

READ_PACE: Final = sql.load_statement("inference", "read_pace")
READ_HEALTH: Final = sql.load_statement("inference", "read_health")
_RATES: Final[tuple[Literal["prompt", "completion", "request", "image"], ...]] = (
    "prompt", "completion", "request", "image",
)  # fmt: skip


class _Choice(NamedTuple):
    """The candidates that routing selects for a request of a key, and the rules that it applies."""

    selection: Selection
    context: RoutingContext
    rules: KeyRules
    policy: Policy
    workspace: WorkspaceRules


class Explainer:
    """Explains requests by one reading of the database; changes nothing.

    It reads the catalogue and the health at once, and a key with its organization when it is
    explained first. :meth:`load` reads many of them together.
    """

    def __init__(self) -> None:
        # Only the event loop may use the worker's own copies.
        self._catalog = read_catalog_on_orm()
        self._health, self._now = _read_health(), clock.time()
        self._copies: dict[UUID, OrganizationCopy] = {}
        self._assignments: dict[UUID, Assignment] = {}
        # The requests in flight by endpoint of a pool.
        self._running: dict[UUID, int] = {}

    def load(self, ids: Collection[UUID]) -> dict[UUID, ApiKey]:
        """Reads keys with the rules of their organizations, by their ids, with two queries."""
        assigned = {
            "guardrail_of_creator": F("creator__guardrail_assignment__guardrail"),
            "guardrail_of_key": F("guardrail_assignment__guardrail"),
        }
        rows = ApiKey.objects.select_related("organization").annotate(**assigned)
        keys: dict[UUID, Any] = rows.in_bulk(ids)
        missing = {key.organization_id for key in keys.values()} - self._copies.keys()
        if missing:
            self._copies.update(load_organizations(missing))
        for key in keys.values():
            self._assignments[key.pk] = key.guardrail_of_creator, key.guardrail_of_key
        return keys

    def explain(
        self, key: ApiKey, request: InferenceRequest, *, region: str | None
    ) -> dict[str, Any]:
        """Returns the candidates in order, the excluded endpoints with reasons, and a refusal.

        Raises the :class:`GatewayError` that would refuse the request itself.
        """
        choice = self._choose(key, request, region)
        selection = choice.selection
        return {
            "requested": selection.requested,
            "model": selection.model,
            "resolution": (
                None if selection.resolution is None else selection.resolution.describe()
            ),
            "candidates": _describe_candidates(request, choice),
            "excluded": [
                each.body() | _describe_pool(each.route, choice.context, {})
                for each in selection.excluded
            ],
            "needs": describe_needs(request),
            "budget": _find_refusal(key, request, selection, choice.rules.budgets),
            "shadows": _judge_shadows(key, request, region, choice),
            "policy": describe_policy(choice.policy),
            "broadcast": _describe_broadcast(key, region),
            "io_logging": _describe_logging(key, choice.workspace, request, choice.policy),
        }

    def list_candidates(
        self, key: ApiKey, request: InferenceRequest, *, region: str | None
    ) -> list[dict[str, Any]]:
        """Returns the candidates as :meth:`explain` does, and raises the same errors."""
        return _describe_candidates(request, self._choose(key, request, region))

    def _choose(self, key: ApiKey, request: InferenceRequest, region: str | None) -> _Choice:
        require_active(key.organization.suspension_reason)
        if key.pk not in self._assignments:
            self.load([key.pk])
        copy = self._copies[key.organization_id]
        rules = copy.rules.for_key(key.workspace_id, *self._assignments[key.pk])
        require_ingress_region(rules.policy, region)
        policy = rules.policy & Policy.of(served_in=region)
        workspace = copy.rules.workspaces[key.workspace_id]
        health, now = self._health, self._now
        context = RoutingContext(
            snapshot=self._catalog,
            own=copy.resolve(self._catalog),
            workspace_id=key.workspace_id,
            key_digest=key.digest,
            policy=policy,
            organization_id=key.organization_id,
            member_id=key.creator_id,
            defaults=workspace.defaults,
            disabled_tools=workspace.disabled_server_tools,
            health_of=partial(health.health, now=now),
            wait_of=lambda pace, tokens: health.pacer.wait(pace, tokens, now),
            running_of=partial(_count_running, self._read_running(copy)),
        )
        selection = select_candidates(request, context)
        return _Choice(selection, context, rules, policy, workspace)

    def _read_running(self, copy: OrganizationCopy) -> Mapping[UUID, int]:
        """Returns the requests in flight at an organization's pools, which are read once."""
        pools = {each.endpoint_id for each in copy.endpoints if each.settings.routing != NO_POOL}
        if unread := pools - self._running.keys():
            meters = Meter.objects.filter(subject_id__in=unread)
            self._running |= dict.fromkeys(unread, 0)
            self._running |= dict(meters.values_list("subject_id", "running"))
        return self._running


def _describe_broadcast(key: ApiKey, region: str | None) -> list[dict[str, Any]]:
    """Describes the destinations that may be sent the metadata of the request; of each its host."""
    rows = BroadcastDestination.objects.broadcasting().filter(
        Q(api_key_hashes=None) | Q(api_key_hashes__contains=[key.digest]),
        workspace=key.workspace_id,
        regions__contains=[region or Region.GLOBAL.value],
    )
    return [
        {
            "id": str(row.pk),
            "name": row.name,
            "type": row.kind,
            "host": row.host,
            "sampling_rate": float(row.sampling_rate),
            # Rules read what is known when the generation has ended.
            "is_filtered": bool(row.filter_rules and row.filter_rules["enabled"]),
        }
        for row in rows
    ]


def describe_policy(policy: Policy) -> dict[str, Any]:
    """Describes the policy that results from organization, guardrails and region."""
    return {
        "allowed_providers": _sort_names(_intersect_providers(policy.only)),
        "ignored_providers": sorted(policy.ignore),
        "allowed_models": _sort_names(policy.models),
        "ignored_models": sorted(policy.ignored_models),
        "zdr": sorted(policy.zdr),
        "data_collection": "deny" if policy.no_training else "allow",
        "served_in": _sort_names(policy.served_in),
        "fallback": find_level(policy.fallback),
    }


def _describe_logging(
    key: ApiKey, rules: WorkspaceRules, request: InferenceRequest, policy: Policy
) -> dict[str, Any]:
    """Describes whether the input and output of such a request are stored, and why not."""
    workspace, most = key.workspace, settings.IO_LOGGING_DAYS
    reason: Obstacle | None
    if rules.io_logging is None:
        is_wanted = workspace.is_observability_io_logging_enabled
        reason = Obstacle.OPERATOR if is_wanted else Obstacle.WORKSPACE
    else:
        reason = rules.io_logging.find_obstacle(key.pk, request, is_zdr=bool(policy.zdr))
    return {
        "is_logged": reason is None,
        "reason": reason,
        "sampling_rate": 0.0 if reason else float(workspace.io_logging_sampling_rate),
        "retention_days": 0 if reason else min(workspace.io_logging_retention_days or most, most),
    }


def _read_health() -> HealthTable:
    """Returns the health that all workers share, in a new table, so that no probe is reserved."""
    table, now = HealthTable(), clock.time()
    with connection.cursor() as cursor:
        sql.execute(cursor, READ_HEALTH, [oldest_bucket(now)])
        table.merge(cursor.fetchall(), now)
        sql.execute(cursor, READ_PACE, [oldest_pace(now)])
        table.pacer.merge(cursor.fetchall())
    return table


def _judge_shadows(
    key: ApiKey,
    request: InferenceRequest,
    region: str | None,
    choice: _Choice,
) -> list[dict[str, Any]]:
    """Says for each shadow that concerns the key why it would refuse the request."""
    selection, rules = choice.selection, choice.rules
    if not (rules.shadows and selection.candidates):
        return []
    limits = collect_budgets(rules.budgets, key.pk, key.workspace_id, key.creator_id, limit_of(key))
    judged = JudgedRequest(
        request, request, region, rules.policy, limits, key.organization_id, selection,
        choice.context, BatchScreening().shadows,
    )  # fmt: skip
    found = []
    for each in rules.shadows:
        budgets = collect_budgets(
            each.budgets, key.pk, key.workspace_id, key.creator_id, limit_of(key)
        )
        reason = judge_shadow(judged, each, budgets, _read_budgets(key, budgets))
        found.append({"guardrail_id": str(each.guardrail_id), "would_refuse": str(reason) or None})
    return found


def _read_budgets(key: ApiKey, budgets: Iterable[Budget]) -> Budgets:
    """Reads the balance of a key's organization and the meters of budgets."""
    account = Account.objects.get(organization=key.organization_id, kind=Account.Kind.CREDITS)
    meters = Meter.objects.filter(subject_id__in=[budget.subject_id for budget in budgets])
    return Budgets(
        balances={key.organization_id: account.available},
        readings={row[0]: MeterReading(*row) for row in meters.values_list(*MeterReading._fields)},
    )


def _find_refusal(
    key: ApiKey, request: InferenceRequest, selection: Selection, rules: Iterable[BudgetRule]
) -> dict[str, Any] | None:
    """Describes the budget or the balance that would refuse to pay; ``None`` if none would."""
    budgets = collect_budgets(rules, key.pk, key.workspace_id, key.creator_id, limit_of(key))
    available = _read_budgets(key, budgets)
    try:
        left = available.find_left(budgets)
        if selection.candidates:
            available.find_affordable(
                request,
                selection.candidates,
                key.organization_id,
                left,
                settings.BYOK_FEE_PERCENT,
            )
    except (LimitSpent, PaymentRequired) as error:
        refusal: dict[str, Any] = error.metadata.get("budget") or {
            "scope": "balance",
            **error.metadata,
        }
        return refusal
    return None


def _describe_candidates(request: InferenceRequest, choice: _Choice) -> list[dict[str, Any]]:
    health_of = choice.context.health_of
    routes = {each.route.endpoint_id: each.route for each in choice.selection.candidates}
    shares = Counter[tuple[str, int | None]]()
    for route in routes.values():
        if route.is_private:
            shares[route.model_slug, route.pool.priority or 0] += weight_of(route)
    return [
        _describe_candidate(number, candidate, request, candidate.health(health_of))
        | _describe_pool(candidate.route, choice.context, shares)
        | candidate.route.describe_drift()
        for number, candidate in enumerate(choice.selection.candidates, 1)
    ]


def _describe_pool(
    route: Route, context: RoutingContext, shares: Mapping[tuple[str, int | None], int]
) -> dict[str, Any]:
    """Describes the place of a private endpoint in its pool; nothing if it states none."""
    if route.pool == NO_POOL:
        return {}
    priority, weight = route.pool.priority or 0, weight_of(route)
    total = shares.get((route.model_slug, priority), 0)
    pool = {
        "priority": priority,
        "weight": weight,
        "share": round(weight / total, 4) if total else 0.0,
        "in_flight": context.running_of(route),
        "max_in_flight": route.pool.max_in_flight,
    }
    return {"pool": pool}


def _count_running(running: Mapping[UUID, int], route: Route) -> int:
    return running.get(route.endpoint_id, 0)


def _describe_candidate(
    number: int, candidate: Candidate, request: InferenceRequest, health: Health
) -> dict[str, Any]:
    route = candidate.route
    return {
        "order": number,
        "provider": route.facts.provider_name,
        "endpoint_id": str(route.endpoint_id),
        "private": route.is_private,
        "model": route.model_slug,
        "is_byok": candidate.is_byok,
        "price": {name: route.price.text(name) for name in _RATES},
        "worst_case_cost": usd(worst_case_nano(request, candidate)),
        "bound": describe_bound(request, candidate),
        "health": health.body(),
    }


def _intersect_providers(lists: Collection[frozenset[str]]) -> frozenset[str] | None:
    """Returns the providers that every list names, by slug if there are several lists."""
    if len(lists) < 2:
        return next(iter(lists), None)
    providers = list(Provider.objects.values_list("slug", "name"))
    slugs = {name.lower(): slug for slug, name in providers} | {slug: slug for slug, _ in providers}
    return frozenset.intersection(
        *(frozenset(slugs.get(name, name) for name in listed) for listed in lists)
    )


def _sort_names(names: Iterable[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)
