"""``GET /models/user`` lists the models that policies and guardrails allow."""

from __future__ import annotations

from random import Random
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.test import APIClient

from accounts.models import (
    ApiKey,
    ByokCredential,
    Guardrail,
    KeyAssignment,
    Member,
    MemberAssignment,
    Organization,
    policy_of,
)
from accounts.policy import Family, Policy
from catalog.models import ModelEndpoint
from catalog.visibility import EndpointFacts, exclusions
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.catalogue import USER_ROUTE, ids
from tests.support.factories import Tenant
from tests.support.suite.tiers import count_examples


def govern(tenant: Tenant, **fields: Any) -> Guardrail:
    """Creates a guardrail and assigns it to the tenant's management key."""
    guardrail = Guardrail.objects.create(organization=tenant.organization, name="Own", **fields)
    key = ApiKey.objects.get(organization=tenant.organization, is_management=True)
    KeyAssignment.objects.create(guardrail=guardrail, api_key=key)
    return guardrail


def test_organization_workspace_member_and_key_policies_narrow_the_list(
    management: APIClient, tenant: Tenant
) -> None:
    for name in ("a", "b", "c", "d", "e"):
        factories.make_endpoint(
            factories.make_model(f"acme/{name}"), factories.make_provider(f"at-{name}")
        )
    assert ids(management, route=USER_ROUTE) == ["acme/a", "acme/b", "acme/c", "acme/d", "acme/e"]
    organization, workspace = tenant.organization, tenant.workspace
    factories.change(organization, ignored_providers=["at-a"])
    assert ids(management, route=USER_ROUTE) == ["acme/b", "acme/c", "acme/d", "acme/e"]
    Guardrail.objects.create(
        pk=workspace.default_guardrail_id,
        organization=organization,
        workspace=workspace,
        name="Default",
        ignored_models=["acme/b"],
    )
    assert ids(management, route=USER_ROUTE) == ["acme/c", "acme/d", "acme/e"]
    creator = Member.objects.create(organization=organization, email="ann@acme.example")
    ApiKey.objects.filter(organization=organization).update(creator=creator)
    theirs = Guardrail.objects.create(
        organization=organization, name="Ann's", ignored_models=["acme/c-2026-01-01"]
    )
    MemberAssignment.objects.create(guardrail=theirs, member=creator)
    assert ids(management, route=USER_ROUTE) == ["acme/d", "acme/e"]
    govern(tenant, allowed_models=["acme/a", "acme/d"])
    assert ids(management, route=USER_ROUTE) == ["acme/d"]


def test_price_is_that_of_the_cheapest_allowed_endpoint(
    management: APIClient, tenant: Tenant
) -> None:
    model = factories.make_model()
    for slug, prompt in (("cheap", "0.000001"), ("dear", "0.000003"), ("middle", "0.000002")):
        factories.make_endpoint(
            model,
            factories.make_provider(slug),
            price=factories.make_price(prompt, "0"),
            max_completion_tokens=int(prompt[-1]),
        )
    govern(tenant, ignored_providers=["Cheap"])
    (row,) = management.get(USER_ROUTE).json()["data"]
    assert row["pricing"]["prompt"] == "0.000002"
    assert row["top_provider"]["max_completion_tokens"] == 2


def test_private_price_is_shown_when_no_public_endpoint_is_allowed(
    management: APIClient, tenant: Tenant, private: Any
) -> None:
    factories.make_endpoint(private.model, factories.make_provider("public"))
    govern(tenant, ignored_providers=["public"])
    (row,) = management.get(USER_ROUTE).json()["data"]
    assert row["pricing"]["prompt"] == "0.5"


def test_policy_checks_the_declarations_of_a_private_endpoint(
    management: APIClient, tenant: Tenant, private: Any
) -> None:
    guardrail = govern(tenant, enable_paid_model_training=False)
    assert ids(management, route=USER_ROUTE) == ["acme/own"]
    factories.change(guardrail, enforce_zdr_other=True)
    assert ids(management, route=USER_ROUTE) == []
    factories.change(private, declared_zdr=True)
    assert ids(management, route=USER_ROUTE) == ["acme/own"]


@pytest.mark.django_db(transaction=True)
def test_a_change_is_visible_on_the_next_request(
    management: APIClient, anonymous: APIClient, tenant: Tenant
) -> None:
    first = factories.make_endpoint(
        factories.make_model("acme/one"), factories.make_provider("north")
    )
    assert ids(management, route=USER_ROUTE) == ["acme/one"]
    second = factories.make_endpoint(factories.make_model("acme/two"), first.provider)
    assert ids(management, route=USER_ROUTE) == ["acme/one", "acme/two"]
    factories.change(first.model, name="Renamed")
    assert management.get(USER_ROUTE).json()["data"][0]["name"] == "Renamed"
    factories.set_price(second, factories.make_price("7", "8"))
    assert management.get(USER_ROUTE).json()["data"][1]["pricing"]["completion"] == "8"
    guardrail = govern(tenant, ignored_models=["acme/two"])
    assert ids(management, route=USER_ROUTE) == ["acme/one"]
    factories.change(guardrail, ignored_models=["acme/one"])
    assert ids(management, route=USER_ROUTE) == ["acme/two"]
    organization = tenant.organization
    factories.change(organization, forbids_training=True)
    assert ids(management, route=USER_ROUTE) == ["acme/two"]
    factories.change(first.provider, trains_on_prompts=True)
    assert ids(management, route=USER_ROUTE) == []
    public = [row["id"] for row in anonymous.get("/api/v1/models").json()["data"]]
    assert public == ["acme/one", "acme/two"]
    factories.change(second, is_listed=False)
    public = [row["id"] for row in anonymous.get("/api/v1/models").json()["data"]]
    assert public == ["acme/one"]


_PROVIDERS = ("north", "south", "east", "west")
_SLUGS = tuple(
    f"{author}/{name}"
    for author in ("anthropic", "google", "openai", "x-ai", "acme")
    for name in ("one", "two", "three")
)
_NAMES = st.lists(st.sampled_from((*_PROVIDERS, "North", "nowhere")), max_size=3)
_MODELS = st.lists(
    st.sampled_from((*_SLUGS, *(f"{slug}-2026-01-01" for slug in _SLUGS))), max_size=8
)
_OF_ORGANIZATION: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "allowed_providers": (None, _NAMES),
    "ignored_providers": (None, _NAMES),
    "requires_zdr": (False, st.just(True)),
    "forbids_training": (False, st.just(True)),
}
_OF_GUARDRAIL: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "allowed_models": (None, _MODELS),
    "ignored_models": (None, _MODELS),
    "allowed_providers": (None, _NAMES),
    "ignored_providers": (None, _NAMES),
    "allow_safety_retention_google": (None, st.booleans()),
    "allow_safety_retention_other": (None, st.booleans()),
    "enable_free_model_publication": (None, st.booleans()),
    "enable_free_model_training": (None, st.booleans()),
    "enable_paid_model_training": (None, st.booleans()),
    **{f"enforce_zdr_{family}": (None, st.booleans()) for family in Family},
}


def _few(limits: dict[str, tuple[Any, st.SearchStrategy[Any]]]) -> st.SearchStrategy[Any]:
    """Draws at most three limits and keeps the others at their defaults.

    More limits together would exclude nearly all models.
    """
    return st.sets(st.sampled_from(sorted(limits)), max_size=3).flatmap(
        lambda names: st.fixed_dictionaries(
            {
                name: limit if name in names else st.just(default)
                for name, (default, limit) in limits.items()
            }
        )
    )


def _any_endpoints(tenant: Tenant) -> None:
    """Creates varied public endpoints, and private endpoints of the tenant."""
    random = Random(5)
    providers = [
        factories.make_provider(slug, trains_on_prompts=random.random() < 0.5)
        for slug in _PROVIDERS
    ]
    for provider in providers:
        factories.make_credential(tenant, provider)
    for slug in _SLUGS:
        model = factories.make_model(slug)
        for provider in random.sample(providers, random.choice((0, 1, 1, 2, 3))):
            factories.make_endpoint(
                model,
                provider,
                price=factories.make_price(random.choice(("0", "0.1", "0.2")), "0"),
                region=random.choice(("global", "europe", "us")),
                zdr=random.random() < 0.5,
            )
        if random.random() < 0.4:
            endpoint = factories.make_draft(
                tenant,
                model,
                random.choice(providers),
                declared_region=random.choice((None, "global", "europe", "us")),
                declared_zdr=random.choice((None, False, True)),
            )
            credential = ByokCredential.objects.get(provider_slug=endpoint.provider.slug)
            factories.make_validation(endpoint, credential)
            endpoint.activate()


def _facts() -> list[EndpointFacts]:
    """Returns the facts of all public and private endpoints that a policy checks."""
    public = [
        EndpointFacts(
            endpoint.provider.slug,
            endpoint.provider.name,
            endpoint.zdr,
            endpoint.provider.trains_on_prompts,
            endpoint.model.slug,
            endpoint.model.canonical_slug,
            endpoint.region,
            endpoint.price.price.is_free,
        )
        for endpoint in ModelEndpoint.objects.all()
    ]
    private = [
        EndpointFacts(
            endpoint.provider.slug,
            endpoint.provider_name,
            endpoint.declared_zdr is True,
            False,
            endpoint.model.slug,
            endpoint.model.canonical_slug,
            endpoint.declared_region,
        )
        for endpoint in PrivateEndpoint.objects.all()
    ]
    return public + private


def _admitted(facts: list[EndpointFacts], policy: Policy) -> list[str]:
    """Returns the models that have at least one endpoint that the policy does not exclude."""
    return sorted({each.model_slug for each in facts if exclusions(each, policy) == ()})


def test_list_has_the_models_with_at_least_one_allowed_endpoint(
    management: APIClient, tenant: Tenant, settings: Any
) -> None:
    settings.REGION_HOSTS = {"eu.example.com": "europe", "us.example.com": "us"}
    settings.ALLOWED_HOSTS = ["testserver", *settings.REGION_HOSTS]
    _any_endpoints(tenant)
    guardrail = govern(tenant)
    key = ApiKey.objects.get(organization=tenant.organization, is_management=True)
    # Without limits, the list has all models that have an endpoint.
    facts = _facts()
    assert sorted(ids(management, route=USER_ROUTE)) == _admitted(facts, Policy())

    @hypothesis.settings(max_examples=count_examples(100), deadline=None, database=None)
    @given(
        organization=_few(_OF_ORGANIZATION),
        own=_few(_OF_GUARDRAIL),
        host=st.sampled_from(("testserver", "testserver", "eu.example.com", "us.example.com")),
    )
    def check(organization: dict[str, Any], own: dict[str, Any], host: str) -> None:
        Organization.objects.filter(pk=tenant.organization.pk).update(**organization)
        Guardrail.objects.filter(pk=guardrail.pk).update(**own)
        policy = policy_of(ApiKey.objects.get(pk=key.pk))
        policy &= Policy.of(served_in=settings.REGION_HOSTS.get(host))
        rows = management.get(USER_ROUTE, HTTP_HOST=host).json()["data"]
        assert sorted(row["id"] for row in rows) == _admitted(facts, policy)

    check()
