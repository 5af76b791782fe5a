"""Whether a policy admits an endpoint, and every reason why not; the lists and the router ask."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from accounts.policy import Policy


class Exclusion(StrEnum):
    """Why an endpoint is not admitted."""

    PROVIDER_NOT_ALLOWED = "provider_not_allowed"
    PROVIDER_IGNORED = "provider_ignored"
    RETAINS_DATA = "zdr"
    TRAINS_ON_DATA = "data_collection"


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """What a policy judges an endpoint by."""

    provider_slug: str
    provider_name: str
    zdr: bool
    trains_on_prompts: bool


def exclusions(facts: EndpointFacts, policy: Policy) -> tuple[Exclusion, ...]:
    """Returns every reason for which the policy excludes an endpoint; empty means admitted."""
    names = {facts.provider_slug.lower(), facts.provider_name.lower()}
    reasons: list[Exclusion] = []
    if policy.only is not None and not names & policy.only:
        reasons.append(Exclusion.PROVIDER_NOT_ALLOWED)
    if names & policy.ignore:
        reasons.append(Exclusion.PROVIDER_IGNORED)
    if policy.zdr and not facts.zdr:
        reasons.append(Exclusion.RETAINS_DATA)
    if policy.no_training and facts.trains_on_prompts:
        reasons.append(Exclusion.TRAINS_ON_DATA)
    return tuple(reasons)
