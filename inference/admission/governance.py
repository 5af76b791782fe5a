"""An organization's rules for its keys, in the form in which the data plane keeps them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet

from accounts.models import (
    ApiKey,
    BudgetInterval,
    Guardrail,
    GuardrailShadow,
    LimitOwner,
    LimitReset,
    Organization,
    RateLimit,
    Workspace,
    WorkspaceBudget,
    guardrails_of,
)
from accounts.policy import Policy
from billing.budgets import Budget, Scope
from billing.rate_limits import NO_RULES, LimitScope, OwnerRules, Rate, RateRule, RateRules
from inference.filters.definitions import Filters, build_filters
from inference.routing.routes import NO_DEFAULTS, RoutingDefaults
from inference.texts.rules import LoggingRules

Assignment: TypeAlias = tuple[UUID | None, UUID | None]
"""The ids of the guardrails that are assigned to the creator of a key and to the key itself."""

# Merged rules that the copy of an organization keeps, at up to 70 kilobytes each.
_MOST_MERGED: Final = 256
_PERIODS: Final = {interval: place for place, interval in enumerate(BudgetInterval.values)}


@dataclass(frozen=True, slots=True)
class BudgetRule:
    """A limit that becomes a budget of each key, member or workspace that it applies to."""

    scope: Scope
    limit_nano: int
    reset: LimitReset | None
    include_byok: bool
    budget_id: UUID | None = None
    guardrail_id: UUID | None = None

    def make_budget(
        self, key_id: UUID, workspace_id: UUID, member_id: UUID | None
    ) -> Budget | None:
        """Returns the budget of one key; ``None`` for a member's rule if the key has no member."""
        match self.scope:
            case Scope.MEMBER | Scope.WORKSPACE_DEFAULT_MEMBER:
                subject_id = member_id
            case Scope.WORKSPACE:
                subject_id = workspace_id
            case _:
                subject_id = key_id
        if subject_id is None:
            return None
        return Budget(
            self.scope,
            subject_id,
            self.limit_nano,
            self.reset,
            self.include_byok,
            self.budget_id,
            self.guardrail_id,
        )


@dataclass(frozen=True, slots=True)
class WorkspaceRules:
    """The rules of one workspace, and the defaults for fields that its requests omit."""

    default_guardrail_id: UUID
    budgets: tuple[BudgetRule, ...] = ()
    defaults: RoutingDefaults = NO_DEFAULTS
    disabled_server_tools: frozenset[str] = frozenset()
    fallback: str | None = None
    keeps_answers: bool = False
    caches_responses: bool = False
    # ``None`` unless the workspace logs inputs and outputs.
    io_logging: LoggingRules | None = None


@dataclass(frozen=True, slots=True)
class GuardrailRules:
    """The rules of one guardrail: its policy, its limit if it has one, and its filters."""

    guardrail_id: UUID
    policy: Policy
    limit_nano: int | None = None
    reset: LimitReset | None = None
    include_byok: bool = False
    filters: Filters = ()
    shadow: Shadow | None = None

    def make_budget_rule(self, scope: Scope) -> BudgetRule | None:
        """Returns the guardrail's limit for a scope; ``None`` for a guardrail without a limit."""
        if self.limit_nano is None:
            return None
        return BudgetRule(
            scope, self.limit_nano, self.reset, self.include_byok, guardrail_id=self.guardrail_id
        )


@dataclass(frozen=True, slots=True)
class Shadow:
    """The rules that a guardrail would have; they count what they would refuse."""

    shadow_id: UUID
    rules: GuardrailRules


class KeyRules(NamedTuple):
    """The rules that apply to a key: merged policy, budget rules in order, content filters.

    ``shadows`` are the rules that would apply if a guardrail's shadow were enforced, one by one.
    ``guardrails`` are the policies that were merged, by the ID of their guardrail.
    """

    policy: Policy
    budgets: tuple[BudgetRule, ...]
    filters: Filters
    shadows: tuple[ShadowedRules, ...] = ()
    guardrails: Mapping[UUID, Policy] = MappingProxyType({})


class ShadowedRules(NamedTuple):
    """The rules of a key with the shadow of one guardrail in its place."""

    shadow_id: UUID
    guardrail_id: UUID
    policy: Policy
    budgets: tuple[BudgetRule, ...]
    own_filters: Filters


@dataclass(frozen=True, slots=True)
class OrganizationRules:
    """All rules of an organization at one version."""

    policy: Policy
    workspaces: Mapping[UUID, WorkspaceRules]
    guardrails: Mapping[UUID, GuardrailRules]
    rates: RateRules = NO_RULES
    # A tenant may combine each guardrail of a key with each of a member.
    _merged: dict[Any, KeyRules] = field(default_factory=dict)

    @property
    def merged_count(self) -> int:
        """The merged rules that are kept; it changes with each that is added."""
        return len(self._merged)

    def for_key(
        self,
        workspace_id: UUID,
        member_guardrail_id: UUID | None,
        key_guardrail_id: UUID | None,
    ) -> KeyRules:
        """Returns the rules of a key: those of its workspace, its creator and itself, merged."""
        key = (workspace_id, member_guardrail_id, key_guardrail_id)
        rules = self._merged.get(key)
        if rules is None:
            if len(self._merged) >= _MOST_MERGED:
                self._merged.clear()
            rules = self._merged[key] = self._merge(*key)
        return rules

    def with_guardrail(self, guardrail: GuardrailRules) -> OrganizationRules:
        """Returns the same rules with a guardrail in place of the one with its id, or added."""
        guardrails = {**self.guardrails, guardrail.guardrail_id: guardrail}
        return OrganizationRules(self.policy, self.workspaces, guardrails, self.rates)

    def _merge(self, workspace_id: UUID, member: UUID | None, key: UUID | None) -> KeyRules:
        """Merges the rules, and merges them again with each shadow."""
        rules = self._merge_once(workspace_id, member, key)
        shadowed = []
        for guardrail_id in {self.workspaces[workspace_id].default_guardrail_id, member, key}:
            guardrail = None if guardrail_id is None else self.guardrails.get(guardrail_id)
            if guardrail is None or guardrail.shadow is None:
                continue
            proposed = guardrail.shadow.rules
            merged = self.with_guardrail(proposed)._merge_once(workspace_id, member, key)
            shadowed.append(
                ShadowedRules(
                    guardrail.shadow.shadow_id,
                    guardrail.guardrail_id,
                    merged.policy,
                    merged.budgets,
                    _changed_filters(guardrail, proposed),
                )
            )
        return rules._replace(shadows=tuple(shadowed)) if shadowed else rules

    def _merge_once(self, workspace_id: UUID, member: UUID | None, key: UUID | None) -> KeyRules:
        """Merges policies and filters; orders budget rules as they are enforced."""
        workspace = self.workspaces[workspace_id]
        policy = self.policy
        if workspace.fallback is not None:
            policy &= Policy.of(fallback=workspace.fallback)
        rules: list[BudgetRule | None] = []
        filters: dict[UUID, Filters] = {}
        policies: dict[UUID, Policy] = {}
        for guardrail_id, scopes in (
            (
                workspace.default_guardrail_id,
                (Scope.WORKSPACE_DEFAULT_MEMBER, Scope.WORKSPACE_DEFAULT_KEY),
            ),
            (member, (Scope.MEMBER,)),
            (key, (Scope.API_KEY,)),
        ):
            # An assignment may name a guardrail that was created after this copy was loaded.
            guardrail = None if guardrail_id is None else self.guardrails.get(guardrail_id)
            if guardrail is not None:
                policy &= guardrail.policy
                rules.extend(guardrail.make_budget_rule(scope) for scope in scopes)
                filters[guardrail.guardrail_id] = guardrail.filters
                policies[guardrail.guardrail_id] = guardrail.policy
        return KeyRules(
            policy,
            (*(rule for rule in rules if rule is not None), *workspace.budgets),
            tuple(chain.from_iterable(filters.values())),
            guardrails=policies,
        )


def collect_budgets(
    rules: Iterable[BudgetRule],
    key_id: UUID,
    workspace_id: UUID,
    member_id: UUID | None,
    key_limit: Budget | None,
) -> tuple[Budget, ...]:
    """Returns the budgets of a key in the order in which they are enforced, its own limit last."""
    budgets = [rule.make_budget(key_id, workspace_id, member_id) for rule in rules]
    return tuple(budget for budget in (*budgets, key_limit) if budget is not None)


def make_key_limit(
    key_id: UUID, limit_nano: int | None, reset: str | None, *, include_byok: bool
) -> Budget | None:
    """Returns the budget of a key's own limit, from its columns; ``None`` without a limit."""
    if limit_nano is None:
        return None
    period = None if reset is None else LimitReset(reset)
    return Budget(Scope.KEY_LIMIT, key_id, limit_nano, period, include_byok)


def limit_of(key: ApiKey) -> Budget | None:
    """Returns the budget of the key's own limit; ``None`` without a limit."""
    return make_key_limit(
        key.pk, key.limit_nano, key.limit_reset, include_byok=key.include_byok_in_limit
    )


def budgets_of(key: ApiKey) -> tuple[Budget, ...]:
    """Reads the guardrails and budgets of a key, and returns what :func:`collect_budgets` does."""
    guardrails = guardrails_of(key)
    organization = OrganizationRules(
        policy=key.organization.policy,
        workspaces={key.workspace_id: _read_workspace(key.workspace, key.workspace.budgets.all())},
        guardrails={item.pk: read_guardrail(item) for item in guardrails if item is not None},
    )
    member, own = (None if one is None else one.pk for one in (guardrails.member, guardrails.key))
    rules = organization.for_key(key.workspace_id, member, own)
    return collect_budgets(rules.budgets, key.pk, key.workspace_id, key.creator_id, limit_of(key))


def select_rules(organizations: Collection[UUID]) -> tuple[QuerySet[Any], ...]:
    """Returns the rows of which :func:`make_rules` makes the rules of organizations."""
    return (
        Workspace.objects.filter(organization__in=organizations),
        WorkspaceBudget.objects.filter(workspace__organization__in=organizations),
        Guardrail.objects.filter(organization__in=organizations),
        GuardrailShadow.objects.filter(guardrail__organization__in=organizations),
        RateLimit.objects.filter(organization__in=organizations),
    )


def make_rules(
    organizations: Iterable[Organization],
    workspaces: Iterable[Workspace],
    budgets: Iterable[WorkspaceBudget],
    guardrails: Iterable[Guardrail],
    shadows: Iterable[GuardrailShadow],
    limits: Iterable[RateLimit],
) -> dict[UUID, OrganizationRules]:
    """Returns the rules of organizations, by their ids, of the rows that belong to them."""
    budgets_of = _group(budgets, "workspace_id")
    workspaces_of = _group(workspaces, "organization_id")
    guardrails_of_owner = _group(guardrails, "organization_id")
    limits_of = _group(limits, "organization_id")
    shadow_of = {shadow.guardrail_id: shadow for shadow in shadows}
    return {
        each.pk: OrganizationRules(
            policy=each.policy,
            workspaces={
                row.pk: _read_workspace(row, budgets_of.get(row.pk, ()))
                for row in workspaces_of.get(each.pk, ())
            },
            guardrails={
                row.pk: _read_with_shadow(row, shadow_of.get(row.pk))
                for row in guardrails_of_owner.get(each.pk, ())
            },
            rates=read_rates(limits_of.get(each.pk, ())),
        )
        for each in organizations
    }


def _group(rows: Iterable[Any], column: str) -> dict[UUID, list[Any]]:
    found: dict[UUID, list[Any]] = {}
    for row in rows:
        found.setdefault(getattr(row, column), []).append(row)
    return found


def read_rates(rows: Iterable[RateLimit]) -> RateRules:
    """Returns the rules of an organization's rate limits."""
    owners: dict[LimitOwner, tuple[dict[str, RateRule], list[RateRule]]] = {}
    for row in rows:
        limits = {rate: value for rate in Rate if (value := getattr(row, rate)) is not None}
        models, own = owners.setdefault(row.owner, ({}, []))
        rule = RateRule(_scope_of(row.owner), row.subject_id, limits, row.model)
        if row.model is None:
            own.append(rule)
        else:
            models[row.model] = rule
    if not owners:
        return NO_RULES
    found = {
        owner: OwnerRules(own[0] if own else None, models)
        for owner, (models, own) in owners.items()
    }
    return RateRules(
        organization=next(
            (each for owner, each in found.items() if _scope_of(owner) is LimitScope.ORGANIZATION),
            None,
        ),
        workspaces={
            owner.workspace_id: each for owner, each in found.items() if owner.workspace_id
        },
        keys={owner.api_key_id: each for owner, each in found.items() if owner.api_key_id},
        end_users={
            owner.end_user: each for owner, each in found.items() if owner.end_user is not None
        },
    )


def _scope_of(owner: LimitOwner) -> LimitScope:
    if owner.end_user is not None:
        return LimitScope.END_USER
    if owner.api_key_id is not None:
        return LimitScope.API_KEY
    return LimitScope.ORGANIZATION if owner.workspace_id is None else LimitScope.WORKSPACE


def _read_workspace(workspace: Workspace, budgets: Iterable[WorkspaceBudget]) -> WorkspaceRules:
    return WorkspaceRules(
        default_guardrail_id=workspace.default_guardrail_id,
        budgets=tuple(
            BudgetRule(
                Scope.WORKSPACE,
                budget.limit_nano,
                None if budget.interval == "lifetime" else LimitReset(budget.interval),
                workspace.include_byok_in_budgets,
                budget_id=budget.pk,
            )
            for budget in sorted(budgets, key=lambda one: _PERIODS[one.interval])
        ),
        defaults=RoutingDefaults(
            workspace.default_text_model,
            workspace.default_provider_sort,
            workspace.default_image_model,
        ),
        disabled_server_tools=frozenset(workspace.disabled_server_tools or ()),
        fallback=workspace.fallback,
        keeps_answers=workspace.is_answer_storage_enabled,
        caches_responses=workspace.is_response_caching_enabled,
        io_logging=_read_logging(workspace),
    )


def _read_logging(workspace: Workspace) -> LoggingRules | None:
    if not (workspace.is_observability_io_logging_enabled and settings.IO_LOGGING_DAYS):
        return None
    keys = workspace.io_logging_api_key_ids
    return LoggingRules(
        workspace.io_logging_sampling_rate, None if keys is None else frozenset(keys)
    )


def read_guardrail(guardrail: Guardrail) -> GuardrailRules:
    """Returns the rules of a guardrail, stored or not."""
    return GuardrailRules(
        guardrail_id=guardrail.pk,
        policy=guardrail.policy,
        limit_nano=guardrail.limit_nano,
        reset=None if guardrail.reset_interval is None else LimitReset(guardrail.reset_interval),
        include_byok=guardrail.include_byok_in_budgets,
        filters=build_filters(
            guardrail.pk, guardrail.content_filter_builtins, guardrail.content_filters
        ),
    )


def _changed_filters(enforced: GuardrailRules, proposed: GuardrailRules) -> Filters:
    """Returns the proposed filters; none if they are those that every request passes anyway."""
    return () if proposed.filters == enforced.filters else proposed.filters


def _read_with_shadow(guardrail: Guardrail, shadow: GuardrailShadow | None) -> GuardrailRules:
    rules = read_guardrail(guardrail)
    if shadow is None:
        return rules
    proposed = read_guardrail(guardrail.propose(**shadow.limits))
    return replace(rules, shadow=Shadow(shadow.pk, proposed))
