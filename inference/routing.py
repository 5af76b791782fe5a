"""From a request to the candidates that may serve it, in order; pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from accounts.policy import Policy
from catalog.dialects.base import Operation
from catalog.pricing import Price
from catalog.visibility import EndpointFacts, exclusions
from config.errors import NotFound
from config.secrets import Secret
from endpoints.models import ModelNotFound
from inference.schemas import InferenceRequest, MaxPrice, ProviderPreferences

_MILLION: Final = Decimal(1_000_000)


class Unusable(StrEnum):
    """Why an endpoint that the policy admits cannot be used all the same."""

    MAX_PRICE = "max_price"
    QUANTIZATION = "quantizations"
    PARAMETERS = "require_parameters"
    NO_CREDENTIAL = "no_credential"
    CREDENTIAL_REQUIRED = "byok_required"
    DIALECT = "dialect_not_supported"
    OPERATION = "operation_not_supported"


class NoEndpoint(NotFound):
    """The model exists, and nothing that may serve this request is left."""

    error_type = "no_endpoint"


@dataclass(frozen=True, slots=True)
class Credential:
    """An organization's own credential at a provider, opened.

    ``host`` is where it belongs, when it says so itself.
    """

    provider_slug: str
    workspace_id: uuid.UUID | None
    secret: Secret | None
    is_fallback: bool
    is_required: bool
    is_byok_only: bool
    allowed_models: frozenset[str] | None
    allowed_key_digests: frozenset[str] | None
    allowed_hosts: frozenset[str] | None
    host: str | None = None

    def covers(self, route: Route) -> bool:
        return self.allowed_models is None or not self.allowed_models.isdisjoint(
            (route.model_slug, route.model_permaslug)
        )


@dataclass(frozen=True, slots=True)
class Route:
    """A public endpoint of the catalogue or an organization's private one, as routing sees it.

    ``secret`` is the operator's, for public endpoints; ``None`` where there is none. ``dialect`` is
    ``None`` while this release does not speak it, or nothing says where the endpoint is. Without a
    ``base_url`` the credential does.
    """

    endpoint_id: uuid.UUID
    is_private: bool
    model_slug: str
    model_permaslug: str
    facts: EndpointFacts
    dialect: str | None
    base_url: str | None
    host: str
    upstream_model_id: str
    price_id: int
    price: Price
    operations: frozenset[Operation] = frozenset(Operation)
    secret: Secret | None = None
    attestation_id: int | None = None
    quantization: str = "unknown"
    supported_parameters: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A route and the credential with which to use it."""

    route: Route
    secret: Secret
    is_byok: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The public catalogue at one version: routes by every name of their model."""

    version: int
    routes: Mapping[str, tuple[Route, ...]]
    slugs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OrganizationSnapshot:
    """What one organization adds at one version: its private endpoints and its credentials."""

    version: int
    catalog_version: int
    routes: Mapping[str, tuple[Route, ...]]
    credentials: tuple[Credential, ...]


@dataclass(slots=True)
class Excluded:
    """An endpoint that was left out, and every reason why."""

    provider: str
    is_private: bool
    reasons: list[str]

    def body(self) -> dict[str, Any]:
        return {
            "provider": self.provider,
            "private": self.is_private,
            "excluded_by": self.reasons,
        }


@dataclass(slots=True)
class Plan:
    """The candidates in order of trial, and what was excluded."""

    candidates: list[Candidate] = field(default_factory=list)
    excluded: list[Excluded] = field(default_factory=list)


def plan(
    request: InferenceRequest,
    *,
    snapshot: Snapshot,
    own: OrganizationSnapshot,
    workspace_id: uuid.UUID,
    key_digest: str,
    policy: Policy,
) -> Plan:
    """Returns the candidates of a request, private endpoints first, then the cheapest.

    Raises :class:`ModelNotFound` when no model of the request exists, and :class:`NoEndpoint`, with
    every exclusion and its reasons, when none of its endpoints may be used.
    """
    preferences = request.preferences
    policy &= Policy.of(
        only=preferences.only,
        ignore=preferences.ignore,
        zdr=bool(preferences.zdr),
        no_training=preferences.data_collection == "deny",
    )
    result = Plan()
    known = False
    for name in request.models:
        if name not in snapshot.slugs:
            continue
        known = True
        routes = [*own.routes.get(name, ()), *snapshot.routes.get(name, ())]
        routes.sort(key=lambda route: _rank(route, preferences))
        for route in routes:
            credentials = [
                credential
                for credential in own.credentials
                if credential.provider_slug == route.facts.provider_slug
                and credential.workspace_id in (None, workspace_id)
                and (
                    credential.allowed_key_digests is None
                    or key_digest in credential.allowed_key_digests
                )
            ]
            reasons: list[str] = [str(reason) for reason in exclusions(route.facts, policy)]
            reasons.extend(_unwanted(route, request))
            if route.dialect is None:
                reasons.append(Unusable.DIALECT)
            elif request.operation not in route.operations:
                reasons.append(Unusable.OPERATION)
            found = [] if reasons else list(_with_credentials(route, credentials, reasons))
            result.candidates.extend(found)
            if not found:
                result.excluded.append(
                    Excluded(route.facts.provider_name, route.is_private, reasons)
                )
    if not known:
        raise ModelNotFound(f"There is no model {request.models[0]!r}.")
    if not result.candidates:
        raise NoEndpoint(
            f"No endpoint of {request.models[0]!r} may serve this request.",
            metadata={"excluded": [excluded.body() for excluded in result.excluded]},
        )
    if preferences.allow_fallbacks is False:
        del result.candidates[1:]
    return result


def _unwanted(route: Route, request: InferenceRequest) -> Iterator[Unusable]:
    """Yields the request's own conditions that a route does not meet."""
    preferences = request.preferences
    if preferences.max_price is not None and _is_dearer(route.price, preferences.max_price):
        yield Unusable.MAX_PRICE
    wanted = preferences.quantizations
    if wanted is not None and route.quantization not in wanted:
        yield Unusable.QUANTIZATION
    known = route.supported_parameters
    if preferences.require_parameters and known is not None and request.parameters - known:
        yield Unusable.PARAMETERS


def _is_dearer(price: Price, limit: MaxPrice) -> bool:
    rates = (
        (price.prompt * _MILLION, limit.prompt),
        (price.completion * _MILLION, limit.completion),
        (price.request, limit.request),
        (price.image, limit.image),
    )
    return any(most is not None and rate > Decimal(str(most)) for rate, most in rates)


def _rank(route: Route, preferences: ProviderPreferences) -> tuple[int, bool, Any, str]:
    """Orders routes: those that the request names first, private before public, then by price."""
    order = [name.lower() for name in preferences.order or ()]
    names = (route.facts.provider_slug.lower(), route.facts.provider_name.lower())
    position = min((order.index(name) for name in names if name in order), default=len(order))
    return position, not route.is_private, route.price.prompt, str(route.endpoint_id)


def _with_credentials(
    route: Route, credentials: list[Credential], reasons: list[str]
) -> Iterator[Candidate]:
    """Yields the route with each credential that may open it, in order of trial."""
    own = [
        credential
        for credential in credentials
        if credential.secret is not None
        and credential.covers(route)
        and (
            credential.allowed_hosts is None
            or (credential.host or route.host) in credential.allowed_hosts
        )
    ]
    found = [
        Candidate(route, credential.secret, is_byok=True)
        for credential in own
        if credential.secret is not None and not credential.is_fallback
    ]
    if not route.is_private:
        if any(
            credential.is_byok_only or (credential.is_required and credential.covers(route))
            for credential in credentials
        ):
            reasons.append(Unusable.CREDENTIAL_REQUIRED)
        elif route.secret is not None:
            found.append(Candidate(route, route.secret, is_byok=False))
    found.extend(
        Candidate(route, credential.secret, is_byok=True)
        for credential in own
        if credential.secret is not None and credential.is_fallback
    )
    if not found and not reasons:
        reasons.append(Unusable.NO_CREDENTIAL)
    yield from found
