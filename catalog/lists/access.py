"""Tells what a key can call, by the credentials of its organization and those of the operator.

A list asks :func:`inference.routing.candidates.find_payers` as a request does, but for kinds of
endpoints: a catalogue has thousands of endpoints and few kinds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from django.db import connection

from accounts.models import ApiKey
from accounts.policy import Fallback, Policy, find_level
from catalog.visibility import exclusions
from inference.admission.copies.catalog import host_of_url
from inference.admission.copies.organizations import OrganizationCopy, load_organization
from inference.routing.candidates import find_payers
from inference.routing.routes import CatalogProvider, Credential, Target

# The organizations that a process remembers; another one costs a query.
_ORGANIZATIONS: Final = 1_000


class EndpointPlace(NamedTuple):
    """The host of an endpoint, and whether it can be called without an own credential."""

    host: str = ""
    is_served: bool = False


NOWHERE: Final = EndpointPlace()


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials that a key may use, the endpoints of its organization and its private models.

    ``credentials`` are grouped by the slug of their provider. ``provider_slugs`` are those of the
    organization's own providers, whose names are ``provider_names``, and ``places`` has its active
    endpoints. ``levels`` has the level of each model that it keeps private, and ``model_slugs`` are
    those of its own models, also of deleted ones that it keeps private. An access without anything
    is that of the operator alone.
    """

    credentials: Mapping[str, Sequence[Credential]] = field(default_factory=dict)
    provider_slugs: frozenset[str] = frozenset()
    provider_names: frozenset[str] = frozenset()
    places: Mapping[UUID, EndpointPlace] = field(default_factory=dict)
    levels: Mapping[UUID, Fallback] = field(default_factory=dict)
    model_slugs: frozenset[str] = frozenset()

    @property
    def named_models(self) -> frozenset[str]:
        """The names of the models to which a credential is limited."""
        return frozenset(
            name
            for group in self.credentials.values()
            for credential in group
            for name in credential.allowed_models or ()
        )

    def admits(self, target: Target, policy: Policy, *, is_served: bool) -> bool:
        """Returns whether a credential that the policy permits can call an endpoint."""
        payers = find_payers(target, self.credentials, self.provider_slugs, is_served=is_served)
        own_names = self.provider_names
        if payers.is_served and not exclusions(target.facts, policy, own_names):
            return True
        return any(not exclusions(each.facts_of(target), policy, own_names) for each in payers.own)


OPERATORS: Final = Access()


class OrganizationCache:
    """Keeps copies of organizations for a whole process, as many as it can remember.

    The authentication of a key reads the version of its organization, so a change of a credential
    is visible to the next request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._copies: OrderedDict[UUID, OrganizationCopy] = OrderedDict()

    def load(self, key: ApiKey) -> OrganizationCopy:
        """Returns the copy of a key's organization; reads a new version with one query."""
        owner = key.organization
        if connection.in_atomic_block:
            # A transaction sees its own changes, but the version changes only at its commit.
            return load_organization(owner.pk)
        with self._lock:
            kept = self._copies.get(owner.pk)
            if kept is not None and kept.version == owner.routing_version:
                self._copies.move_to_end(owner.pk)
                return kept
        found = load_organization(owner.pk)
        with self._lock:
            self._copies[owner.pk] = found
            self._copies.move_to_end(owner.pk)
            if len(self._copies) > _ORGANIZATIONS:
                self._copies.popitem(last=False)
        return found


def read_access(
    key: ApiKey,
    copy: OrganizationCopy,
    providers: Mapping[UUID, CatalogProvider],
    policy_of_key: Callable[[], Policy],
) -> Access:
    """Returns what a key can call, beside what its policy says.

    A management key calls no model itself. It stands for all keys of its workspace, so credentials
    that are limited to some of them count. The policy is asked for where it may close a model whose
    public endpoints the organization opens.
    """
    credentials: dict[str, list[Credential]] = {}
    for credential in copy.place_credentials(providers):
        if (
            credential.workspace_id in (None, key.workspace_id)
            if key.is_management
            else credential.may_be_used_by(key.workspace_id, key.digest, key.creator_id)
        ):
            credentials.setdefault(credential.provider_slug, []).append(credential)
    places = {}
    for endpoint in copy.endpoints:
        provider = copy.find_provider(endpoint.provider_id, providers)
        if provider is not None:
            host = host_of_url(endpoint.address_at(provider))
            places[endpoint.endpoint_id] = EndpointPlace(host, provider.is_keyless)
    stated = copy.rules.workspaces[key.workspace_id].fallback
    general = (key.organization.policy.fallback, None if stated is None else Fallback(stated))
    # Nothing public serves an own model, so its level matters to nobody.
    levels = dict.fromkeys(copy.own_models, Fallback.NONE)
    for model_id, kept in copy.kept_models.items():
        levels[model_id] = find_level(kept.fallback, *general)
    if Fallback.ANY in levels.values():
        strict = policy_of_key().fallback
        levels = {model_id: find_level(level, strict) for model_id, level in levels.items()}
    provider_slugs = frozenset(each.slug for each in copy.own_providers.values())
    model_slugs = frozenset(each.slug for each in copy.own_models.values())
    return Access(credentials, provider_slugs, copy.provider_names, places, levels, model_slugs)
