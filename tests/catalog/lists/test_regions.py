"""Tests the model lists at regional hosts, and guardrails that limit the hosts of a key."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.models import ApiKey, Guardrail, KeyAssignment
from tests.support import factories
from tests.support.factories import Tenant

MODELS = "/api/v1/models"
USER = "/api/v1/models/user"
COUNT = "/api/v1/models/count"
EMBEDDINGS = "/api/v1/embeddings/models"
ZDR = "/api/v1/endpoints/zdr"
EU, US, API, PLAIN = "eu.example.com", "us.example.com", "api.example.com", "testserver"


@pytest.fixture(autouse=True)
def _hosts(settings: Any) -> None:
    settings.REGION_HOSTS = {EU: "europe", US: "us", API: "global"}
    settings.ALLOWED_HOSTS = [PLAIN, *settings.REGION_HOSTS]


@pytest.fixture
def catalogue(db: None) -> None:
    """Creates a model in each region, one in both and one in none; all make embeddings."""
    for slug, regions in {
        "acme/eu": ["europe"],
        "acme/us": ["us"],
        "acme/both": ["us", "europe"],
        "acme/nowhere": ["global"],
    }.items():
        model = factories.make_model(slug, output_modalities=["text", "embeddings"])
        for number, region in enumerate(regions, 1):
            factories.make_endpoint(
                model,
                factories.make_provider(f"{slug[5:]}-{region}"),
                price=factories.make_price(f"0.{number}", "0"),
                region=region,
                zdr=True,
            )


def ids(client: APIClient, route: str, host: str) -> list[str]:
    response = client.get(route, HTTP_HOST=host)
    assert response.status_code == 200, response.content
    return [row["id"] for row in response.json()["data"]]


ALL = ["acme/both", "acme/eu", "acme/nowhere", "acme/us"]
SERVED = [
    (EU, ["acme/both", "acme/eu"]),
    (f"{EU.upper()}:443", ["acme/both", "acme/eu"]),
    (f"{EU}.", ["acme/both", "acme/eu"]),
    (US, ["acme/both", "acme/us"]),
    (API, ALL),
    (PLAIN, ALL),
]


@pytest.mark.parametrize(("host", "expected"), SERVED)
def test_lists_have_the_models_of_the_region(
    anonymous: APIClient, management: APIClient, catalogue: None, host: str, expected: list[str]
) -> None:
    assert ids(anonymous, MODELS, host) == expected
    assert ids(management, MODELS, host) == expected
    assert ids(management, USER, host) == expected
    assert ids(anonymous, EMBEDDINGS, host) == expected
    count = anonymous.get(COUNT, HTTP_HOST=host).json()
    assert count == {"data": {"count": len(expected)}}


@pytest.mark.parametrize(
    ("host", "tags"),
    [
        (EU, ["both-europe", "eu-europe"]),
        (US, ["both-us", "us-us"]),
        (API, ["both-us", "both-europe", "eu-europe", "nowhere-global", "us-us"]),
        (PLAIN, ["both-us", "both-europe", "eu-europe", "nowhere-global", "us-us"]),
    ],
)
def test_endpoint_lists_have_the_endpoints_of_the_region(
    anonymous: APIClient, catalogue: None, host: str, tags: list[str]
) -> None:
    rows = anonymous.get(ZDR, HTTP_HOST=host).json()["data"]
    assert [row["tag"] for row in rows] == tags
    shown = anonymous.get(f"{MODELS}/acme/both/endpoints", HTTP_HOST=host).json()["data"]
    assert [row["tag"] for row in shown["endpoints"]] == [
        tag for tag in tags if tag.startswith("both")
    ]


def test_model_route_returns_404_outside_the_regions_of_the_model(
    anonymous: APIClient, catalogue: None
) -> None:
    route = "/api/v1/model/acme/us"
    assert anonymous.get(route, HTTP_HOST=US).status_code == 200
    assert anonymous.get(route, HTTP_HOST=PLAIN).status_code == 200
    refused = anonymous.get(route, HTTP_HOST=EU)
    assert refused.status_code == 404
    assert refused.json()["error"]["metadata"] == {"error_type": "model_not_found"}
    listed = anonymous.get(f"{MODELS}/acme/us/endpoints", HTTP_HOST=EU)
    assert listed.json()["data"]["endpoints"] == []


@pytest.mark.parametrize(("host", "price"), [(PLAIN, "0.1"), (US, "0.1"), (EU, "0.2")])
def test_price_is_the_cheapest_of_the_region(
    anonymous: APIClient, catalogue: None, host: str, price: str
) -> None:
    (row,) = anonymous.get(f"{MODELS}?q=both", HTTP_HOST=host).json()["data"]
    assert row["pricing"]["prompt"] == price
    one = anonymous.get("/api/v1/model/acme/both", HTTP_HOST=host).json()["data"]
    assert one == row


def test_region_filter_narrows_the_list_of_the_host(anonymous: APIClient, catalogue: None) -> None:
    assert ids(anonymous, f"{MODELS}?region=eu", PLAIN) == ["acme/both", "acme/eu"]
    assert ids(anonymous, f"{MODELS}?region=eu", EU) == ["acme/both", "acme/eu"]
    # The EU host shows only endpoints in Europe, and none of them is in the US.
    assert ids(anonymous, f"{MODELS}?region=us", EU) == []


def test_next_link_has_the_same_host(anonymous: APIClient, catalogue: None) -> None:
    page = anonymous.get(f"{MODELS}?limit=1", HTTP_HOST=EU).json()
    assert page["total_count"] == 2
    assert page["links"] == {"next": f"http://{EU}{MODELS}?limit=1&offset=1"}


def test_an_unknown_host_is_refused(anonymous: APIClient) -> None:
    assert anonymous.get(MODELS, HTTP_HOST="x.eu.example.com").status_code == 400


@pytest.mark.parametrize(
    ("declared", "hosts"),
    [
        (None, [PLAIN, API]),
        ("global", [PLAIN, API]),
        ("europe", [PLAIN, API, EU]),
        ("us", [PLAIN, API, US]),
    ],
)
def test_a_private_endpoint_is_listed_at_hosts_of_its_declared_region(
    management: APIClient, tenant: Tenant, declared: str | None, hosts: list[str]
) -> None:
    # The regions of its credential and of its provider's public endpoints do not count.
    provider = factories.make_provider()
    credential = factories.make_credential(tenant, provider, declared_region="europe")
    other = factories.make_model("acme/public")
    factories.make_endpoint(other, provider, region="us")
    endpoint = factories.make_draft(
        tenant, factories.make_model("acme/own"), provider, declared_region=declared
    )
    factories.make_validation(endpoint, credential)
    endpoint.activate()
    listed = [
        host for host in (PLAIN, API, EU, US) if ids(management, USER, host)[:1] == ["acme/own"]
    ]
    assert listed == hosts


def let_in(tenant: Tenant, *regions: str) -> Guardrail:
    """Creates a guardrail that allows both keys of the tenant only hosts of these regions."""
    guardrail = Guardrail.objects.create(
        organization=tenant.organization, name="Entrances", allowed_data_regions=list(regions)
    )
    for key in ApiKey.objects.filter(organization=tenant.organization):
        KeyAssignment.objects.create(guardrail=guardrail, api_key=key)
    return guardrail


@pytest.mark.parametrize(
    ("regions", "hosts"),
    [
        (["europe"], [EU]),
        (["us"], [US]),
        (["global"], [PLAIN, API]),
        (["europe", "global"], [PLAIN, API, EU]),
        (["europe", "us", "global"], [PLAIN, API, EU, US]),
    ],
)
def test_a_guardrail_limits_the_hosts_of_a_key(
    management: APIClient,
    inference: APIClient,
    tenant: Tenant,
    catalogue: None,
    regions: list[str],
    hosts: list[str],
) -> None:
    let_in(tenant, *regions)
    asked = (PLAIN, API, EU, US)
    statuses = {host: management.get(USER, HTTP_HOST=host).status_code for host in asked}
    assert statuses == {host: 200 if host in hosts else 403 for host in asked}
    # Each key may read the public list at all hosts until the organization filters it.
    for client in (management, inference):
        assert {client.get(MODELS, HTTP_HOST=host).status_code for host in asked} == {200}
    organization = tenant.organization
    factories.change(organization, is_filtered_model_catalog_enabled=True)
    for client in (management, inference):
        filtered = {host: client.get(MODELS, HTTP_HOST=host).status_code for host in asked}
        assert filtered == statuses


def test_refusal_names_the_allowed_regions(management: APIClient, tenant: Tenant) -> None:
    guardrail = let_in(tenant, "us", "europe")
    response = management.get(USER, HTTP_HOST=PLAIN)
    assert (response.status_code, response.json()) == (
        403,
        {
            "error": {
                "code": 403,
                "message": "region_not_allowed: a guardrail lets this key in through europe, us "
                "hosts alone, and the request came through a global one.",
                "metadata": {
                    "error_type": "region_not_allowed",
                    "region": "global",
                    "allowed_data_regions": ["europe", "us"],
                },
            }
        },
    )
    factories.change(guardrail, allowed_data_regions=None)
    assert management.get(USER, HTTP_HOST=PLAIN).status_code == 200


def test_guardrails_without_a_common_region_refuse_all_hosts(
    management: APIClient, tenant: Tenant
) -> None:
    let_in(tenant, "europe")
    Guardrail.objects.create(
        pk=tenant.workspace.default_guardrail_id,
        organization=tenant.organization,
        workspace=tenant.workspace,
        name="Default",
        allowed_data_regions=["us"],
    )
    for host, region in ((EU, "europe"), (US, "us"), (PLAIN, "global")):
        error = management.get(USER, HTTP_HOST=host).json()["error"]
        assert error["message"] == (
            "region_not_allowed: a guardrail lets this key in through no host at all, and the "
            f"request came through a {region} one."
        )
