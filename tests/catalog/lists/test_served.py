"""Models and endpoints are listed by the operations that an endpoint really serves."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from catalog.dialects.base import Operation
from catalog.operations import OPERATIONS, served_outputs
from tests.support import factories
from tests.support.catalogue import EMBEDDINGS, ROUTE, USER_ROUTE, ids, publish, publish_privately
from tests.support.factories import Tenant

pytestmark = pytest.mark.django_db
ALL = "?output_modalities=all"


def show(client: APIClient, slug: str, query: str = ALL) -> dict[str, Any]:
    rows = client.get(f"{ROUTE}{query}").json()["data"]
    [found] = [row for row in rows if row["id"] == slug]
    return found


def test_a_model_without_an_endpoint_for_its_operation_is_not_listed() -> None:
    anyone = APIClient()
    film = publish("acme/film", output_modalities=["video"])
    anthropic = factories.make_provider("maker", dialect="anthropic")
    publish("acme/vector", output_modalities=["embeddings"], endpoint_provider=anthropic)
    publish("acme/falcon")
    assert ids(anyone, ALL) == ["acme/falcon"]
    assert ids(anyone, "?output_modalities=video") == []
    assert ids(anyone, route=EMBEDDINGS) == []
    assert anyone.get(f"{ROUTE}/count{ALL}").json() == {"data": {"count": 1}}
    assert anyone.get("/api/v1/model/acme/film").status_code == 404
    assert anyone.get(f"{ROUTE}/acme/film").status_code == 404
    listed = anyone.get(f"{ROUTE}/{film.model.canonical_slug}/endpoints")
    assert (listed.status_code, listed.json()["data"]["endpoints"]) == (200, [])


def test_an_endpoint_that_serves_nothing_offers_no_price() -> None:
    anyone = APIClient()
    dear = publish("acme/vector", "0.000009", output_modalities=["embeddings"])
    factories.make_endpoint(
        dear.model,
        factories.make_provider("maker", dialect="anthropic"),
        price=factories.make_price("0.000001"),
        zdr=True,
    )
    assert show(anyone, "acme/vector")["pricing"]["prompt"] == "0.000009"
    endpoints = anyone.get(f"{ROUTE}/{dear.model.canonical_slug}/endpoints").json()["data"]
    assert [row["tag"] for row in endpoints["endpoints"]] == [dear.provider.slug]
    assert anyone.get("/api/v1/endpoints/zdr").json() == {"data": []}


def test_an_output_is_listed_only_where_an_endpoint_produces_it(tenant: Tenant) -> None:
    anyone = APIClient()
    anthropic = factories.make_provider("maker", dialect="anthropic")
    publish("acme/both", output_modalities=["text", "embeddings"], endpoint_provider=anthropic)
    assert ids(anyone) == ["acme/both"]
    assert ids(anyone, "?output_modalities=embeddings") == []
    assert ids(anyone, "?output_modalities=embeddings,text") == ["acme/both"]
    assert ids(anyone, route=EMBEDDINGS) == []
    assert show(anyone, "acme/both")["architecture"]["output_modalities"] == ["text", "embeddings"]


def test_a_private_endpoint_serves_what_its_provider_speaks(tenant: Tenant) -> None:
    publish_privately(tenant, "acme/own", output_modalities=["text", "embeddings"])
    manager = factories.client(tenant.management_key)
    assert ids(manager, "?output_modalities=embeddings", USER_ROUTE) == ["acme/own"]
    assert ids(manager, "?output_modalities=text", USER_ROUTE) == ["acme/own"]
    assert ids(manager, "?output_modalities=image", USER_ROUTE) == []
    assert ids(APIClient(), ALL) == []


@pytest.mark.parametrize(
    ("of_endpoints", "expected"),
    [
        ([["tools", "seed"], ["stop", "x_own"]], ["seed", "stop", "tools", "x_own"]),
        ([["tools"]], ["tools"]),
        ([["tools"], []], ["seed", "stop", "temperature", "tools"]),
        ([[]], ["seed", "stop", "temperature", "tools"]),
    ],
)
def test_a_model_supports_what_one_of_its_endpoints_does(
    of_endpoints: list[list[str]], expected: list[str]
) -> None:
    own = ["seed", "stop", "temperature", "tools"]
    first, *others = of_endpoints
    endpoint = publish(
        "acme/falcon", "0", supported_parameters=own, endpoint_supported_parameters=first
    )
    for listed in others:
        factories.make_endpoint(
            endpoint.model, factories.make_provider(), supported_parameters=listed
        )
    anyone = APIClient()
    assert show(anyone, "acme/falcon")["supported_parameters"] == expected
    assert ids(anyone, "?supported_parameters=temperature") == (
        ["acme/falcon"] if "temperature" in expected else []
    )
    [shown, *_] = anyone.get(f"{ROUTE}/{endpoint.model.canonical_slug}/endpoints").json()["data"][
        "endpoints"
    ]
    assert shown["supported_parameters"] == (first or own)
    assert shown["supports_tool_choice"]["auto"] is True


@pytest.mark.parametrize("of_endpoint", [["tools", "seed", "min_p"], []])
def test_what_a_format_lacks_is_listed_nowhere(tenant: Tenant, of_endpoint: list[str]) -> None:
    anthropic = factories.make_provider("maker", dialect="anthropic", is_keyless=True)
    endpoint = publish(
        "acme/falcon",
        supported_parameters=["tools", "seed", "min_p"],
        endpoint_provider=anthropic,
        endpoint_supported_parameters=of_endpoint,
    )
    own = publish_privately(tenant, "acme/own", supported_parameters=["tools", "seed"])
    own.provider.dialect = "anthropic"
    own.provider.save_fields("dialect")
    anyone, manager = APIClient(), factories.client(tenant.management_key)
    assert show(anyone, "acme/falcon")["supported_parameters"] == ["tools"]
    assert ids(anyone, "?supported_parameters=seed") == []
    listed = anyone.get(f"{ROUTE}/{endpoint.model.canonical_slug}/endpoints").json()["data"]
    assert [each["supported_parameters"] for each in listed["endpoints"]] == [["tools"]]
    rows = manager.get(USER_ROUTE).json()["data"]
    assert {row["id"]: row["supported_parameters"] for row in rows} == {
        "acme/falcon": ["tools"], "acme/own": ["tools"],
    }  # fmt: skip
    shown = manager.get(f"/api/v1/private-endpoints/{own.pk}").json()["data"]
    assert shown["supported_parameters"] == ["tools"]


def test_the_top_provider_has_the_context_of_the_model_where_its_own_is_unknown() -> None:
    publish("acme/falcon", context_length=1000)
    publish("acme/hawk", context_length=1000, endpoint_context_length=500)
    publish("acme/owl", context_length=None)
    anyone = APIClient()
    lengths = {
        slug: show(anyone, slug)["top_provider"]["context_length"]
        for slug in ("acme/falcon", "acme/hawk", "acme/owl")
    }
    assert lengths == {"acme/falcon": 1000, "acme/hawk": 500, "acme/owl": None}


def test_every_operation_produces_only_what_its_model_does() -> None:
    for operation, row in OPERATIONS.items():
        assert served_outputs(row.outputs, [operation]) == row.outputs
        assert served_outputs([], [operation]) == frozenset()
    assert served_outputs(["text", "video"], [Operation.CHAT]) == {"text"}
