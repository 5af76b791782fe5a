"""Decides which endpoints a policy admits, and gives the reasons for excluding the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from accounts.policy import Family, Policy, author_pattern


class Exclusion(StrEnum):
    """The reason why a policy excludes an endpoint; ``excluded_by`` in responses."""

    PROVIDER_NOT_ALLOWED = "provider_not_allowed"
    PROVIDER_IGNORED = "provider_ignored"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    MODEL_IGNORED = "model_ignored"
    RETAINS_DATA = "zdr"
    TRAINS_ON_DATA = "data_collection"
    REGION = "region"


@dataclass(frozen=True, slots=True)
class EndpointFacts:
    """The facts about an endpoint that a policy depends on.

    ``region`` is ``None`` when the endpoint declares no region; then no regional policy admits it.
    """

    provider_slug: str
    provider_name: str
    zdr: bool
    trains_on_prompts: bool
    model_slug: str = ""
    model_permaslug: str = ""
    region: str | None = None
    is_free: bool = False
    is_private: bool = False

    @property
    def kind(self) -> EndpointFacts:
        """Returns the facts with the model's family in place of the model.

        All endpoints of a kind share these. A catalogue has thousands of endpoints but few kinds,
        so a policy is applied to kinds.
        """
        return replace(self, model_slug=f"{Family.of(self.model_slug)}/", model_permaslug="")


def exclusions(
    facts: EndpointFacts, policy: Policy, own_names: frozenset[str] = frozenset()
) -> tuple[Exclusion, ...]:
    """Returns all reasons why the policy excludes an endpoint; empty for an admitted one.

    ``own_names`` are those of the organization's own providers, in lower case. They allow no public
    endpoint: a provider that the catalogue got later may have the same.
    """
    if policy.is_open:
        return ()
    names = {facts.provider_slug.lower(), facts.provider_name.lower()}
    reasons: list[Exclusion] = []
    if policy.only:
        allowing = names if facts.is_private else names - own_names
        if any(allowing.isdisjoint(listed) for listed in policy.only):
            reasons.append(Exclusion.PROVIDER_NOT_ALLOWED)
    if names & policy.ignore:
        reasons.append(Exclusion.PROVIDER_IGNORED)
    if policy.models is not None or policy.ignored_models:
        slug, permaslug = facts.model_slug, facts.model_permaslug
        models = {slug, permaslug, author_pattern(slug), author_pattern(permaslug)}
        if policy.models is not None and not models & policy.models:
            reasons.append(Exclusion.MODEL_NOT_ALLOWED)
        if models & policy.ignored_models:
            reasons.append(Exclusion.MODEL_IGNORED)
    if not facts.zdr and (policy.zdr or policy.no_retention or policy.no_free_retention):
        family = Family.of(facts.model_slug)
        if (
            family in policy.zdr
            or family in policy.no_retention
            or (policy.no_free_retention and facts.is_free)
        ):
            reasons.append(Exclusion.RETAINS_DATA)
    if facts.trains_on_prompts and (
        policy.no_free_training if facts.is_free else policy.no_training
    ):
        reasons.append(Exclusion.TRAINS_ON_DATA)
    if policy.served_in is not None and facts.region not in policy.served_in:
        reasons.append(Exclusion.REGION)
    return tuple(reasons)


def admits_model(names: frozenset[str], policy: Policy) -> bool:
    """Returns whether the policy admits a model with these names, at any endpoint."""
    if policy.models is None and not policy.ignored_models:
        return True
    listed = names | {author_pattern(name) for name in names}
    return (
        policy.models is None or not policy.models.isdisjoint(listed)
    ) and policy.ignored_models.isdisjoint(listed)


def admitted_kinds(
    kinds: Iterable[EndpointFacts], policy: Policy, own_names: frozenset[str] = frozenset()
) -> frozenset[int]:
    """Returns the indexes of the kinds that the policy admits, regardless of the model.

    Together with :func:`admits_model`, gives the same result as :func:`exclusions` for each
    endpoint.
    """
    anything = for_any_model(policy)
    return frozenset(
        place for place, kind in enumerate(kinds) if not exclusions(kind, anything, own_names)
    )


def for_any_model(policy: Policy) -> Policy:
    """Returns the policy without its lists of models."""
    return replace(policy, models=None, ignored_models=frozenset())
