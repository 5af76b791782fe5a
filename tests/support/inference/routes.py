"""Routes, credentials and plans for the tests of routing."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st

from accounts.hosts import HostLimits
from accounts.policy import Policy
from catalog.dialects.base import Operation
from catalog.pricing import Price
from catalog.visibility import EndpointFacts
from config.credentials import Secret
from inference.requests import parsing, schemas
from inference.routing.candidates import (
    RoutingContext,
    Selection,
    require_candidates,
)
from inference.routing.health import Health, HealthState, subject_of
from inference.routing.needs import NoEndpoint
from inference.routing.routes import (
    Candidate,
    CatalogSnapshot,
    Credential,
    OrganizationSnapshot,
    PrivateModel,
    Route,
)

WORKSPACE = uuid.UUID(int=1)
KEY = "digest-of-the-key"
SHARES = ("p50", "p75", "p90", "p99")


def route(
    provider: str,
    price: str = "1",
    *,
    private: bool = False,
    zdr: bool = False,
    trains: bool = False,
    **fields: Any,
) -> Route:
    defaults: dict[str, Any] = {
        "endpoint_id": uuid.uuid4(),
        "is_private": private,
        "model_slug": "a/b",
        "model_permaslug": "a/b-1",
        "facts": EndpointFacts(provider, f"{provider.title()} Inc", zdr, trains),
        "dialect": "openai",
        "base_url": f"https://{provider}.example/v1",
        "host": f"{provider}.example",
        "upstream_model_id": "m",
        "price_id": 1,
        "price": Price(Decimal(price), Decimal(price)),
        "secret": None if private else Secret(f"operator-{provider}"),
    }
    return Route(**{**defaults, **fields})


def credential(provider: str, name: str = "own", **fields: Any) -> Credential:
    defaults: dict[str, Any] = {
        "credential_id": uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.{provider}"),
        "provider_slug": provider,
        "workspace_id": None,
        "secret": Secret(f"{name}-{provider}"),
        "is_fallback": False,
        "is_required": False,
        "is_byok_only": False,
        "allowed_models": None,
        "allowed_key_digests": None,
    }
    if "allowed_hosts" in fields:
        fields["limits"] = HostLimits(allowed_hosts=fields.pop("allowed_hosts"))
    return Credential(**{**defaults, **fields})


def candidate(price: Price, *, is_byok: bool = False, **fields: Any) -> Candidate:
    """Returns a candidate with this price; ``fields`` are those of its route."""
    served = replace(route("x", **fields), price=price)
    return Candidate(served, Secret("s"), is_byok, served.endpoint_id)


def planned(
    public: list[Route] | None = None,
    private: list[Route] | None = None,
    credentials: list[Credential] | None = None,
    policy: Policy | None = None,
    models: list[str] | None = None,
    session: str | None = None,
    tools: frozenset[str] = frozenset(),
    options: dict[str, Any] | None = None,
    by: Callable[..., Selection] = require_candidates,
    private_models: dict[str, PrivateModel] | None = None,
    **preferences: Any,
) -> Selection:
    """The selection of a request; ``options`` are members of the context."""
    request = parsing.InferenceRequest(
        operation=Operation.CHAT,
        models=("a/b",) if models is None else tuple(models),
        stream=False,
        user=None,
        preferences=schemas.ProviderPreferences(**preferences),
        fields={},
        session_id=session,
        tools=tools,
    )
    names: dict[str, list[Route]] = {}
    for each in public or []:
        names.setdefault(each.model_slug, []).append(each)
    own: dict[str, list[Route]] = {}
    for each in private or []:
        own.setdefault(each.model_slug, []).append(each)
    return by(
        request,
        RoutingContext(
            snapshot=CatalogSnapshot(
                version=1,
                routes={name: tuple(routes) for name, routes in names.items()},
                slugs={"a/b": "a/b", "a/b-1": "a/b", "c/d": "c/d", "e/f:free": "e/f:free"},
            ),
            own=OrganizationSnapshot(
                version=1,
                routes={name: tuple(routes) for name, routes in own.items()},
                credentials=tuple(credentials or []),
                private_models=private_models or {},
            ),
            workspace_id=WORKSPACE,
            key_digest=KEY,
            policy=Policy.of(fallback="any") if policy is None else policy,
            **(options or {}),
        ),
    )


def select(
    request: parsing.InferenceRequest,
    *routes: Route,
    by: Callable[..., Selection] = require_candidates,
    **context: Any,
) -> Selection:
    """The selection of a request for ``a/b``; the organization has a credential for ``own``."""
    own = tuple(each for each in routes if each.is_private)
    public = tuple(each for each in routes if not each.is_private)
    return by(
        request,
        RoutingContext(
            snapshot=CatalogSnapshot(1, {"a/b": public}, {"a/b": "a/b"}),
            own=OrganizationSnapshot(1, {"a/b": own}, (credential("own"),)),
            workspace_id=WORKSPACE,
            key_digest=KEY,
            policy=Policy.of(fallback="any"),
            **context,
        ),
    )


def used(found: Selection) -> list[str]:
    """The secrets of the candidates, in order: they name the provider and the payer."""
    return [candidate.secret.reveal() for candidate in found.candidates]


def refused(**case: Any) -> list[dict[str, Any]]:
    with pytest.raises(NoEndpoint) as error:
        planned(**case)
    excluded: list[dict[str, Any]] = error.value.metadata["excluded"]
    return excluded


def excluded(provider: str, *by: str, private: bool = False) -> dict[str, Any]:
    """Returns what is told of an endpoint that is excluded by these reasons."""
    return {
        "provider": f"{provider} Inc",
        "private": private,
        "model": "a/b",
        "excluded_by": list(by),
    }


def reasons(found: Selection) -> dict[str, list[str]]:
    """Returns the reason for which each provider is excluded."""
    return {each.route.facts.provider_slug: each.reasons for each in found.excluded}


def measured(latency: float, throughput: float, failure_share: float = 0.0) -> Health:
    """Returns a good health with these measures."""
    latencies, throughputs = (dict.fromkeys(SHARES, each) for each in (latency, throughput))
    return Health(HealthState.HEALTHY, failure_share, latencies, throughputs)


PRICES = st.sampled_from(["0", "0.000001", "0.000002", "0.00001"])


@st.composite
def routes_of(draw: st.DrawFn) -> list[Route]:
    count = draw(st.integers(1, 6))
    return [
        route(
            draw(st.sampled_from("pqrs")),
            draw(PRICES),
            endpoint_id=uuid.UUID(int=number + 1),
            private=draw(st.booleans()),
            zdr=draw(st.booleans()),
            trains=draw(st.booleans()),
        )
        for number in range(count)
    ]


def subjects(of: Route) -> list[uuid.UUID]:
    """Returns the subjects of a route's health: with the operator's credential and with its own."""
    own = credential(of.facts.provider_slug)
    return [of.endpoint_id, subject_of(of.endpoint_id, own.credential_id)]


def split(routes: list[Route]) -> dict[str, Any]:
    return {
        "public": [each for each in routes if not each.is_private],
        "private": [each for each in routes if each.is_private],
        "credentials": [credential(name) for name in "pqr"],
    }


PREFERENCES = st.fixed_dictionaries(
    {},
    optional={
        "only": st.lists(st.sampled_from("pqrst"), max_size=3),
        "ignore": st.lists(st.sampled_from("pqrst"), max_size=3),
        "order": st.lists(st.sampled_from("pqrst"), max_size=3),
        "zdr": st.booleans(),
        "data_collection": st.sampled_from(["allow", "deny"]),
        "sort": st.sampled_from(["price", "throughput", "latency", "exacto"]),
        "preferred_max_latency": st.sampled_from([0.5, schemas.Percentiles(p90=0.5)]),
    },
)
