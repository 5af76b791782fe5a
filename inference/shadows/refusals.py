"""Finds the guardrail that has refused a request, by the error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from accounts.policy import Fallback, Policy, RegionNotAllowed
from billing.budgets import Budget
from catalog.visibility import Exclusion
from config.api.errors import GatewayError
from inference.routing.candidates import Unusable
from inference.shadow_counts import GuardrailRefusal

# Whether a policy can be why an endpoint is excluded, by the reason.
_RESTRICTS: Final[Mapping[Exclusion, Callable[[Policy], bool]]] = {
    Exclusion.PROVIDER_NOT_ALLOWED: lambda policy: bool(policy.only),
    Exclusion.PROVIDER_IGNORED: lambda policy: bool(policy.ignore),
    Exclusion.MODEL_NOT_ALLOWED: lambda policy: policy.models is not None,
    Exclusion.MODEL_IGNORED: lambda policy: bool(policy.ignored_models),
    Exclusion.RETAINS_DATA: lambda policy: bool(
        policy.zdr or policy.no_retention or policy.no_free_retention
    ),
    Exclusion.TRAINS_ON_DATA: lambda policy: policy.no_training or policy.no_free_training,
    Exclusion.REGION: lambda policy: policy.served_in is not None,
}


def find_refusing(
    error: GatewayError, policies: Mapping[UUID, Policy], budgets: Sequence[Budget]
) -> tuple[UUID, str] | None:
    """Returns the first guardrail of a key that caused an error, and the reason.

    ``policies`` are those of the key's guardrails, ``budgets`` all of the key. Returns ``None`` for
    an error of another cause. Content filters name their guardrail themselves.
    """
    if not policies:
        return None
    if isinstance(error, RegionNotAllowed):
        found = (pk for pk, policy in policies.items() if policy.ingress_regions is not None)
        return _pair(next(found, None), GuardrailRefusal.REGION)
    if (budget := error.metadata.get("budget")) is not None:
        scope = budget["scope"]
        spent = (each.guardrail_id for each in budgets if each.scope.value == scope)
        return _pair(next(spent, None), GuardrailRefusal.BUDGET)
    excluded = error.metadata.get("excluded", ())
    reasons = {reason for endpoint in excluded for reason in endpoint["excluded_by"]}
    for reason in Exclusion:
        if reason in reasons:
            for guardrail_id, policy in policies.items():
                if _RESTRICTS[reason](policy):
                    return guardrail_id, str(reason)
    if Unusable.PRIVATE_ONLY in reasons:
        found = (pk for pk, policy in policies.items() if policy.fallback is Fallback.NONE)
        return _pair(next(found, None), GuardrailRefusal.OTHER)
    return None


def _pair(guardrail_id: UUID | None, reason: GuardrailRefusal) -> tuple[UUID, str] | None:
    return None if guardrail_id is None else (guardrail_id, str(reason))
