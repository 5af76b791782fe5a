"""Where a request of a key would go, for those who ask without sending it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Final, Literal

from django.conf import settings
from django.db import connection

from accounts.models import ApiKey, guardrails_of
from accounts.policy import Policy, require_ingress_region
from billing.budgets import Reading
from billing.models import Account, Meter
from catalog.models import CatalogVersion, Provider
from catalog.pricing import usd
from config import sql
from config.api.errors import PaymentRequired
from inference.admission import governance
from inference.admission.budgets import Budgets, LimitSpent
from inference.admission.estimate import worst_case_nano
from inference.admission.governance import BudgetRule
from inference.admission.snapshots import OrganizationCopy, load_catalog, load_organization
from inference.requests.schemas import InferenceRequest
from inference.routing.candidates import RoutingContext, Selection, select_candidates
from inference.routing.health import Health, HealthTable, oldest_bucket
from inference.routing.routes import Candidate, CatalogSnapshot

READ_HEALTH: Final = sql.load_statement("inference", "read_health")
_RATES: Final[tuple[Literal["prompt", "completion", "request", "image"], ...]] = (
    "prompt", "completion", "request", "image",
)  # fmt: skip


def explain(key: ApiKey, wanted: InferenceRequest, *, region: str | None) -> dict[str, Any]:
    """Returns the candidates in order, what is left out why, and what would refuse to pay.

    Reads what is stored, as a worker would know it a moment later, and changes nothing. Raises what
    the request itself would be refused with.
    """
    snapshot, own = _snapshots(key)
    governing = own.governance.governing(key.workspace_id, *governance.assigned(guardrails_of(key)))
    require_ingress_region(governing.policy, region)
    policy = governing.policy & Policy.of(served_in=region)
    workspace = own.governance.workspaces[key.workspace_id]
    health_of = partial(_read_health().health, now=time.time())
    context = RoutingContext(
        snapshot=snapshot,
        own=own.routes,
        workspace_id=key.workspace_id,
        key_digest=key.digest,
        policy=policy,
        organization_id=key.organization_id,
        member_id=key.creator_id,
        defaults=workspace.defaults,
        disabled_tools=workspace.disabled_server_tools,
        health_of=health_of,
    )
    selection = select_candidates(wanted, context)
    return {
        "model": selection.model,
        "candidates": [
            _shown(number, candidate, wanted, candidate.health(health_of))
            for number, candidate in enumerate(selection.candidates, 1)
        ],
        "excluded": [excluded.body() for excluded in selection.excluded],
        "budget": _refusal(key, wanted, selection, governing.rules),
        "policy": limits(policy),
    }


def _snapshots(key: ApiKey) -> tuple[CatalogSnapshot, OrganizationCopy]:
    """Loads what the router would know; not from a worker's copy, which is another thread's."""
    version = CatalogVersion.objects.values_list("version", flat=True).first() or 0
    own = load_organization(key.organization_id, key.organization.routing_version, version)
    return load_catalog(version), own


def _read_health() -> HealthTable:
    """Returns the health that all workers share; a probe that is due is left to them."""
    table, now = HealthTable(), time.time()
    with connection.cursor() as cursor:
        sql.execute(cursor, READ_HEALTH, [oldest_bucket(now)])
        table.merge(cursor.fetchall(), now)
    return table


def _refusal(
    key: ApiKey, wanted: InferenceRequest, selection: Selection, rules: Iterable[BudgetRule]
) -> dict[str, Any] | None:
    """Returns what would refuse to pay: a budget, or the balance."""
    budgets = governance.budgets(
        rules, key.pk, key.workspace_id, key.creator_id, governance.key_limit(key)
    )
    account = Account.objects.get(organization=key.organization_id, kind=Account.Kind.CREDITS)
    meters = Meter.objects.filter(subject_id__in=[budget.subject_id for budget in budgets])
    available = Budgets(
        balances={key.organization_id: account.available},
        readings={row[0]: Reading(*row) for row in meters.values_list(*Reading._fields)},
    )
    try:
        available.require_unspent(budgets)
        if selection.candidates:
            available.find_affordable(
                wanted,
                selection.candidates,
                key.organization_id,
                budgets,
                settings.BYOK_FEE_PERCENT,
            )
    except (LimitSpent, PaymentRequired) as error:
        refusing: dict[str, Any] = error.metadata.get("budget") or {
            "scope": "balance",
            **error.metadata,
        }
        return refusing
    return None


def _shown(
    number: int, candidate: Candidate, wanted: InferenceRequest, health: Health
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
        "worst_case_cost": usd(worst_case_nano(wanted, candidate)),
        "health": health.body(),
    }


def limits(policy: Policy) -> dict[str, Any]:
    """Describes what everyone but the request permits together."""
    return {
        "allowed_providers": _listed(_in_all(policy.only)),
        "ignored_providers": sorted(policy.ignore),
        "allowed_models": _listed(policy.models),
        "ignored_models": sorted(policy.ignored_models),
        "zdr": sorted(policy.zdr),
        "data_collection": "deny" if policy.no_training else "allow",
        "served_in": _listed(policy.served_in),
    }


def _in_all(lists: Collection[frozenset[str]]) -> frozenset[str] | None:
    """Returns the providers that every list names; by their slugs, where there are several."""
    if len(lists) < 2:
        return next(iter(lists), None)
    providers = list(Provider.objects.values_list("slug", "name"))
    slugs = {name.lower(): slug for slug, name in providers} | {slug: slug for slug, _ in providers}
    return frozenset.intersection(
        *(frozenset(slugs.get(name, name) for name in listed) for listed in lists)
    )


def _listed(names: Iterable[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)
