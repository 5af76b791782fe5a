"""Tests the routes of one model, of its endpoints and of the providers."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rest_framework.test import APIClient

from catalog import imports
from catalog.models import ModelEndpoint
from tests.support import factories
from tests.support.catalogue import (
    EMBEDDINGS,
    ROUTE,
    USER_ROUTE,
    WREN,
    ids,
    publish,
    publish_privately,
)
from tests.support.factories import Tenant
from tests.support.suite.tiers import draw_examples

CATALOGUE = Path(imports.__file__).with_name("data") / "catalogue.json"


def test_embeddings_list_has_only_embeddings_models(anonymous: APIClient, catalogue: None) -> None:
    assert ids(anonymous, route=EMBEDDINGS) == [WREN]
    # The route ignores these parameters.
    assert ids(anonymous, "?output_modalities=text&sort=x", EMBEDDINGS) == [WREN]


NAMES = (
    "acme/falcon-4.5",
    "acme/falcon-4.5-2026-01-01",
    "acme/falcon-4.5:free",
    "acme/falcon-4.5-2026-01-01:nitro",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_found_by_each_of_its_names(anonymous: APIClient, name: str) -> None:
    publish("acme/falcon-4.5")
    publish("acme/hawk")
    listed = {row["id"]: row for row in anonymous.get(ROUTE).json()["data"]}
    assert anonymous.get(f"/api/v1/model/{name}").json() == {"data": listed["acme/falcon-4.5"]}
    shown = anonymous.get(f"{ROUTE}/{name}/endpoints").json()["data"]
    assert (shown["id"], len(shown["endpoints"])) == ("acme/falcon-4.5", 1)


def test_a_model_named_like_a_variant_takes_precedence(anonymous: APIClient) -> None:
    publish("acme/falcon")
    publish("acme/falcon:free", "0", "0")
    shown = anonymous.get("/api/v1/model/acme/falcon:free").json()["data"]
    assert (shown["id"], shown["pricing"]["prompt"]) == ("acme/falcon:free", "0")
    assert anonymous.get("/api/v1/model/acme/falcon").json()["data"]["id"] == "acme/falcon"


@pytest.mark.parametrize("name", [*NAMES, "acme%2Ffalcon-4.5", "acme%2Ffalcon-4.5%3Afree"])
def test_a_model_is_described_as_clients_of_openai_read_it(anonymous: APIClient, name: str) -> None:
    publish("acme/falcon-4.5")
    [listed] = anonymous.get(ROUTE).json()["data"]
    described = anonymous.get(f"{ROUTE}/{name}").json()
    assert described == {"object": "model", "owned_by": "acme"} | listed


def test_a_private_model_is_described_to_its_own_organization_only(
    management: APIClient, anonymous: APIClient, tenant: Tenant
) -> None:
    publish_privately(tenant, "acme/own")
    assert management.get(f"{ROUTE}/acme/own").json()["id"] == "acme/own"
    other = factories.make_tenant()
    for client in (anonymous, factories.client(other.management_key)):
        answer = client.get(f"{ROUTE}/acme/own")
        assert answer.status_code == 404
        assert answer.json()["error"]["metadata"] == {"error_type": "model_not_found"}


@pytest.mark.parametrize(
    "name",
    [
        "acme/none", "none/falcon", "acme/falcon:none", "acme/falcon:", "acme/falcon:free:free",
        "acme/Falcons", "acme/falcon%00", "acme/falcon%1f", "acme/falcon/", "acme/falcon%20",
        "acme/%FF", "acme/falcon-2026", "~acme/falcon",
    ],
)  # fmt: skip
def test_an_unknown_name_returns_404(anonymous: APIClient, name: str) -> None:
    publish("acme/falcon")
    for route in (f"/api/v1/model/{name}", f"{ROUTE}/{name}", f"{ROUTE}/{name}/endpoints"):
        response = anonymous.get(route)
        assert response.status_code == 404
        assert response.json()["error"]["metadata"]["error_type"] == "model_not_found"


@pytest.mark.parametrize(
    "canonical",
    [
        "acme/falcon-4.5-20260101", "acme/falcon:free", "acme/falcon@v1.2:thinking",
        "acme/nested/falcon", "acme/endpoints", "acme/falcon/endpoints", "a.b/c", "acme/user",
        "acme/fal?con#1", "acme/100%25", "acme/föhn", "acme/a+b&c=d",
    ],
)  # fmt: skip
def test_details_link_of_each_model_leads_to_its_endpoints(
    anonymous: APIClient, canonical: str
) -> None:
    publish("acme/one", canonical_slug=canonical)
    publish("acme/two")
    for row in anonymous.get(ROUTE).json()["data"]:
        details = row["links"]["details"]
        assert urlsplit(details).path == details
        shown = anonymous.get(details).json()["data"]
        assert (shown["id"], len(shown["endpoints"])) == (row["id"], 1)


def test_details_links_of_the_bundled_catalogue_lead_to_its_endpoints(anonymous: APIClient) -> None:
    imports.apply(imports.parse(CATALOGUE.read_bytes()))
    for row in draw_examples(anonymous.get(f"{ROUTE}?output_modalities=all").json()["data"]):
        shown = anonymous.get(row["links"]["details"]).json()["data"]
        assert shown["id"] == row.get("alias_target", {}).get("slug", row["id"])
        assert shown["endpoints"][0]["pricing"] == row["pricing"]


def test_details_link_of_a_private_model_shows_no_endpoint(
    management: APIClient, tenant: Tenant
) -> None:
    publish_privately(tenant, "acme/own")
    (row,) = management.get(USER_ROUTE).json()["data"]
    assert management.get(row["links"]["details"]).json()["data"]["endpoints"] == []


FALCON_ENDPOINT = {
    "name": "North Star | acme/falcon-2026-01-01",
    "model_id": "acme/falcon-2026-01-01",
    "model_name": "Falcon",
    "provider_name": "North Star",
    "tag": "north",
    "context_length": 65_536,
    "max_completion_tokens": 4096,
    "max_prompt_tokens": None,
    "pricing": {
        "prompt": "0.000001",
        "completion": "0.000002",
        "image": "0",
        "request": "0",
        "input_cache_read": "0.0000001",
    },
    "quantization": "fp8",
    "service_tier": None,
    "supported_parameters": ["seed", "tools"],
    "supports_tool_choice": {"auto": True, "function": False, "none": False, "required": False},
    "supports_implicit_caching": False,
    "supports_diarization": False,
    "native_tools": {},
    "latency_last_30m": None,
    "throughput_last_30m": None,
    "uptime_last_5m": None,
    "uptime_last_30m": None,
    "uptime_last_1d": None,
}


def test_endpoints_of_a_model_are_listed_by_price(
    anonymous: APIClient, falcon: ModelEndpoint
) -> None:
    cheap = factories.make_endpoint(
        falcon.model,
        factories.make_provider("south"),
        price=factories.make_price("0", "0"),
        context_length=None,
        supported_parameters=["tool_choice"],
    )
    publish("acme/hawk")
    shown = anonymous.get(f"{ROUTE}/acme/falcon/endpoints").json()["data"]
    first, second = shown.pop("endpoints")
    assert shown == {
        "id": "acme/falcon",
        "name": "Falcon",
        "created": 1_780_272_000,
        "description": "A model for tests.",
        "architecture": {
            "input_modalities": ["text"],
            "output_modalities": ["text"],
            "modality": "text->text",
            "tokenizer": None,
            "instruct_type": None,
        },
    }
    assert second == FALCON_ENDPOINT
    assert first["tag"] == cheap.provider.slug
    # An endpoint without a context length of its own shows the model's.
    assert (first["context_length"], first["max_completion_tokens"]) == (131_072, None)
    assert set(first["supports_tool_choice"].values()) == {True}


def test_zdr_route_lists_only_zdr_endpoints(anonymous: APIClient, falcon: ModelEndpoint) -> None:
    factories.make_endpoint(falcon.model, factories.make_provider())
    publish("acme/eagle", endpoint_zdr=True)
    rows = anonymous.get("/api/v1/endpoints/zdr").json()["data"]
    assert [row["model_id"] for row in rows] == ["acme/eagle-2026-01-01", "acme/falcon-2026-01-01"]
    assert rows[1] == FALCON_ENDPOINT


def test_providers_route_lists_listed_providers(anonymous: APIClient) -> None:
    factories.make_provider("b-plain", name="Plain")
    factories.make_provider(
        "a-full",
        name="Full",
        privacy_policy_url="https://full.example/privacy",
        terms_of_service_url="https://full.example/terms",
        status_page_url="https://full.example/status",
        headquarters="CH",
        datacenters=["CH", "DE"],
    )
    factories.make_provider("gone", is_listed=False)
    assert anonymous.get("/api/v1/providers").json() == {
        "data": [
            {
                "name": "Full",
                "slug": "a-full",
                "privacy_policy_url": "https://full.example/privacy",
                "terms_of_service_url": "https://full.example/terms",
                "status_page_url": "https://full.example/status",
                "headquarters": "CH",
                "datacenters": ["CH", "DE"],
            },
            {
                "name": "Plain",
                "slug": "b-plain",
                "privacy_policy_url": None,
                "terms_of_service_url": None,
                "status_page_url": None,
                "headquarters": None,
                "datacenters": [],
            },
        ]
    }
