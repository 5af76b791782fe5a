"""The limits of an organization in number, and of the size of its compiled patterns."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from accounts.destinations.rules import find_expressions
from accounts.patterns import compile_budgets
from config.api.errors import Unprocessable

if TYPE_CHECKING:
    from accounts.models.organizations import Organization

MOST: Final = 2**31 - 1
"""The highest limit that an operator can give to one organization."""


class OrganizationLimit(StrEnum):
    """A limit of an organization; its value is the name of the setting with the default."""

    WORKSPACES = "ORGANIZATION_MAX_WORKSPACES"
    KEYS = "ORGANIZATION_MAX_KEYS"
    CREDENTIALS = "ORGANIZATION_MAX_CREDENTIALS"
    GUARDRAILS = "ORGANIZATION_MAX_GUARDRAILS"
    ALIASES = "ORGANIZATION_MAX_ALIASES"
    PRESETS = "ORGANIZATION_MAX_PRESETS"
    WEBHOOKS = "ORGANIZATION_MAX_WEBHOOKS"
    DESTINATIONS = "ORGANIZATION_MAX_DESTINATIONS"
    PATTERN_BYTES = "ORGANIZATION_PATTERN_BYTES"

    @property
    def noun(self) -> str:
        return _NOUNS[self]


_NOUNS: Final[Mapping[OrganizationLimit, str]] = {
    OrganizationLimit.WORKSPACES: "workspaces",
    OrganizationLimit.KEYS: "API keys",
    OrganizationLimit.CREDENTIALS: "BYOK credentials",
    OrganizationLimit.GUARDRAILS: "guardrails",
    OrganizationLimit.ALIASES: "aliases",
    OrganizationLimit.PRESETS: "presets",
    OrganizationLimit.WEBHOOKS: "webhooks and other subscriptions",
    OrganizationLimit.DESTINATIONS: "broadcast destinations",
    OrganizationLimit.PATTERN_BYTES: "bytes of compiled patterns",
}


class OrganizationLimitReached(Unprocessable):
    """An organization has as many of something as it may have."""

    error_type = "organization_limit_reached"

    def __init__(self, limit: OrganizationLimit, most: int, *, present: int, added: int) -> None:
        super().__init__(
            f"{self.error_type}: {limit} is {most} for this organization, which has {present} "
            f"{limit.noun}; {added} more would be too many. Delete some first, or ask the operator "
            "for a higher limit.",
            metadata={"limit": limit.value, "maximum": most},
        )


def require_pattern_room(
    organization: Organization, patterns: set[str], *, replaced: uuid.UUID
) -> None:
    """Raises :class:`OrganizationLimitReached` if patterns would exceed an organization's limit.

    The caller holds the lock of the organization. ``replaced`` is the key of the row that has the
    patterns from now on, in place of its present ones. Equal patterns are compiled once, so they
    count once.
    """
    if not patterns:
        return
    stored = dict(_find_patterns(organization))
    # What was stored under a higher limit may be kept, moved and enforced.
    if not patterns - set().union(*stored.values()):
        return
    stored.pop(replaced, None)
    others: set[str] = set().union(*stored.values())
    most = organization.limit_of(OrganizationLimit.PATTERN_BYTES)
    present = compile_budgets.measure(organization.pk, others, most)
    added = compile_budgets.measure(organization.pk, patterns - others, most)
    organization.require_room(OrganizationLimit.PATTERN_BYTES, present, added)


def _find_patterns(organization: Organization) -> Iterator[tuple[uuid.UUID, set[str]]]:
    """Yields the patterns of guardrails, their shadows and the rules of destinations, by row."""
    guardrails = organization.guardrails.exclude(content_filters=None).order_by()
    shadows = organization.guardrails.exclude(shadow__limits__content_filters=None).order_by()
    destinations = organization.destinations.filter(workspace__deleted_at=None).order_by()
    rows = guardrails.values_list("pk", "content_filters").union(
        shadows.values_list("shadow__pk", "shadow__limits__content_filters"),
        destinations.exclude(filter_rules=None).values_list("pk", "filter_rules"),
        all=True,
    )
    for pk, found in rows:
        yield pk, patterns_of(found)


def patterns_of(found: Any) -> set[str]:
    """Returns the patterns of a guardrail's custom filters, or of a destination's rules."""
    if isinstance(found, dict):
        return set(find_expressions(found).values())
    return {entry["pattern"] for entry in found or ()}
