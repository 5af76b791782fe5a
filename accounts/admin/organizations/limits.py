"""The limits in number on an organization's page: what is used of each, and the operator's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.conf import settings
from django.contrib.postgres.expressions import ArraySubquery
from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce

from accounts.models import (
    ApiKey,
    BroadcastDestination,
    ByokCredential,
    Guardrail,
    GuardrailShadow,
    Organization,
    OrganizationLimit,
    Preset,
    Subscription,
    Workspace,
)
from accounts.models.limits import MOST, patterns_of
from accounts.patterns import compile_budgets
from catalog.models import ModelAlias
from config.api.text import parse_uuid
from config.console.unfold import Dialog, TextWidget

_OUTER: Final[Any] = OuterRef("pk")
_ROWS: Final[Mapping[OrganizationLimit, Any]] = {
    OrganizationLimit.WORKSPACES: Workspace.objects.for_organization(_OUTER),
    OrganizationLimit.KEYS: ApiKey.objects.for_organization(_OUTER).current(),
    OrganizationLimit.CREDENTIALS: ByokCredential.objects.for_organization(_OUTER),
    OrganizationLimit.GUARDRAILS: Guardrail.objects.for_organization(_OUTER),
    OrganizationLimit.ALIASES: ModelAlias.objects.for_organization(_OUTER),
    OrganizationLimit.PRESETS: Preset.objects.for_organization(_OUTER),
    OrganizationLimit.WEBHOOKS: Subscription.objects.for_organization(_OUTER),
    OrganizationLimit.DESTINATIONS: BroadcastDestination.objects.for_organization(_OUTER),
}
"""The rows that count towards each limit; their creation counts the same ones."""
_DESTINATIONS: Final = _ROWS[OrganizationLimit.DESTINATIONS].exclude(filter_rules=None)
_PATTERNS: Final[Mapping[str, Any]] = {
    "used_filters": Guardrail.objects.for_organization(_OUTER).values("content_filters"),
    "used_shadow_filters": GuardrailShadow.objects.filter(guardrail__organization=_OUTER).values(
        "limits__content_filters"
    ),
    "used_rules": _DESTINATIONS.values("filter_rules"),
}


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The use of one limit; ``is_own`` is true if the limit was set for this organization."""

    title: str
    used: int
    most: int
    is_own: bool

    @property
    def text(self) -> str:
        return f"{self.used:,} / {self.most:,}"


class OwnLimitsDialog(Dialog):
    """Asks for the limits of one organization, with the present ones filled in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        pk: Any = parse_uuid(self.object_id)
        organization = Organization.objects.filter(pk=pk).first()
        own = {} if organization is None else organization.own_limits or {}
        for limit in OrganizationLimit:
            self.initial[limit.value] = own.get(limit.value)
            self.fields[limit.value] = forms.IntegerField(
                label=_title(limit),
                required=False,
                min_value=0,
                max_value=MOST,
                widget=TextWidget(),
                help_text=f"Empty for {getattr(settings, limit):,}, by {limit}.",
            )


def annotate_use() -> dict[str, Any]:
    """Returns the annotations of an organization that :func:`list_use` reads."""
    counts = {limit.value: Coalesce(Subquery(_count(rows)), 0) for limit, rows in _ROWS.items()}
    return counts | {name: ArraySubquery(rows.order_by()) for name, rows in _PATTERNS.items()}


def list_use(organization: Any) -> list[LimitUse]:
    """Returns what an organization, read with :func:`annotate_use`, has of all that is limited.

    Patterns are measured up to the limit alone, so that no more than that is compiled.
    """
    found: set[str] = set().union(
        *(patterns_of(row) for name in _PATTERNS for row in getattr(organization, name))
    )
    most = organization.limit_of(OrganizationLimit.PATTERN_BYTES)
    used = {limit: getattr(organization, limit) for limit in _ROWS}
    used[OrganizationLimit.PATTERN_BYTES] = compile_budgets.measure(None, found, most)
    return [
        LimitUse(
            _title(limit),
            used[limit],
            organization.limit_of(limit),
            is_own=limit in (organization.own_limits or {}),
        )
        for limit in OrganizationLimit
    ]


def _count(rows: Any) -> Any:
    rows = rows.order_by().values("organization_id")
    return rows.annotate(count=Count("pk")).values("count")


def _title(limit: OrganizationLimit) -> str:
    return limit.noun[0].upper() + limit.noun[1:]
