"""What has been spent against each budget that holds for a key, and what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias
from uuid import UUID

from django.db.models import Q, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from accounts.models import ApiKey, BudgetInterval, Guardrail, LimitReset, Member, Workspace
from inference.models import Generation

Subject: TypeAlias = ApiKey | Member | Workspace
"""Whose spending a budget counts."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit, in nano-USD, and what counts against it since it was last reset."""

    scope: str
    limit_nano: int
    spent_nano: int
    reset: LimitReset | None
    include_byok: bool
    budget_id: UUID | None = None
    guardrail_id: UUID | None = None

    @property
    def remaining_nano(self) -> int:
        return self.limit_nano - self.spent_nano

    @property
    def resets_at(self) -> datetime | None:
        return None if self.reset is None else self.reset.ends_at(timezone.now())


def spent(subject: Subject, *, reset: LimitReset | None, include_byok: bool) -> int:
    """Returns what a key, a member's keys or a workspace spent in the present period, nano-USD.

    ``include_byok`` adds what the organization's own credentials paid upstream.
    """
    match subject:
        case ApiKey():
            rows = Generation.objects.filter(api_key=subject)
        case Member():
            rows = Generation.objects.filter(api_key__creator=subject)
        case Workspace():
            # The organization is what the index begins with.
            rows = Generation.objects.filter(
                workspace=subject, organization_id=subject.organization_id
            )
    if reset is not None:
        rows = rows.filter(created_at__gte=reset.began_at(timezone.now()))
    sums = rows.order_by().aggregate(
        credits=Coalesce(Sum("cost_nano"), 0),
        byok=Coalesce(Sum("upstream_cost_nano", filter=Q(is_byok=True)), 0),
    )
    return int(sums["credits"]) + (int(sums["byok"]) if include_byok else 0)


def budgets_of(key: ApiKey) -> list[Budget]:
    """Returns the budgets that hold for a key, in the order in which they are enforced."""
    return [*_of_guardrails(key), *_of_workspace(key.workspace), *_own(key)]


def effective(budgets: list[Budget]) -> Budget | None:
    """Returns the budget that blocks first: the one with the least left."""
    return min(budgets, key=lambda budget: budget.remaining_nano, default=None)


def _of_guardrails(key: ApiKey) -> Iterator[Budget]:
    governance = key.guardrails()
    placed: tuple[tuple[str, Guardrail | None, Subject | None], ...] = (
        ("workspace_default_member", governance.workspace, key.creator),
        ("workspace_default_key", governance.workspace, key),
        ("member", governance.member, key.creator),
        ("api_key", governance.key, key),
    )
    for scope, guardrail, subject in placed:
        if guardrail is None or subject is None or guardrail.limit_nano is None:
            continue
        # The database holds that the two go together.
        reset = LimitReset(str(guardrail.reset_interval))
        include_byok = guardrail.include_byok_in_budgets
        yield Budget(
            scope,
            guardrail.limit_nano,
            spent(subject, reset=reset, include_byok=include_byok),
            reset,
            include_byok,
            guardrail_id=guardrail.pk,
        )


def _of_workspace(workspace: Workspace) -> Iterator[Budget]:
    order = BudgetInterval.values
    for row in sorted(workspace.budgets.all(), key=lambda budget: order.index(budget.interval)):
        reset = BudgetInterval(row.interval).reset
        include_byok = workspace.include_byok_in_budgets
        yield Budget(
            "workspace",
            row.limit_nano,
            spent(workspace, reset=reset, include_byok=include_byok),
            reset,
            include_byok,
            budget_id=row.pk,
        )


def _own(key: ApiKey) -> Iterator[Budget]:
    if key.limit_nano is not None:
        reset = None if key.limit_reset is None else LimitReset(key.limit_reset)
        yield Budget(
            "key_limit",
            key.limit_nano,
            spent(key, reset=reset, include_byok=key.include_byok_in_limit),
            reset,
            key.include_byok_in_limit,
        )
