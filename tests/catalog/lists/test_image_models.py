"""The lists of image models, as OpenRouter's image clients read them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from rest_framework.test import APIClient

from catalog.lists.image_models import DESCRIPTORS
from catalog.models import ModelEndpoint
from catalog.pricing import Billable, Rule
from tests.support import factories
from tests.support.catalogue import publish

ROUTE = "/api/v1/images/models"


def list_models(client: APIClient, **headers: Any) -> dict[str, Any]:
    response = client.get(ROUTE, **headers)
    assert response.status_code == 200, response.content
    return {row["id"]: row for row in response.json()["data"]}


def publish_painter(slug: str = "acme/painter", **fields: Any) -> ModelEndpoint:
    fields = {"input_modalities": ["text", "image"], "output_modalities": ["image"], **fields}
    return publish(slug, **fields)


def test_only_models_that_make_images_are_listed(client: APIClient, db: None) -> None:
    publish("acme/falcon")
    painter = publish_painter(created=2)
    publish_painter("acme/both", output_modalities=["text", "image"], created=1)
    publish_painter("acme/mute", endpoint_provider=factories.make_provider(dialect="bedrock"))
    found = list_models(client)
    assert list(found) == ["acme/painter", "acme/both"]
    row = found["acme/painter"]
    assert row["architecture"] == {
        "input_modalities": ["text", "image"],
        "output_modalities": ["image"],
    }
    assert row["endpoints"] == f"/api/v1/images/models/{painter.model.canonical_slug}/endpoints"
    assert client.get(row["endpoints"]).status_code == 200


def test_parameters_are_those_of_any_endpoint(client: APIClient, db: None) -> None:
    endpoint = publish_painter(endpoint_supported_parameters=["quality", "temperature"])
    [row] = list_models(client).values()
    assert DESCRIPTORS["quality"]["values"] == [
        "auto", "low", "medium", "high", "xhigh", "max", "standard", "hd",
    ]  # fmt: skip
    # The gateway translates ratios and tiers to sizes.
    assert row["supported_parameters"] == {
        "aspect_ratio": DESCRIPTORS["aspect_ratio"],
        "n": {"type": "range", "min": 1, "max": 10},
        "quality": DESCRIPTORS["quality"],
        "resolution": DESCRIPTORS["resolution"],
        "size": {"type": "boolean"},
    }
    assert row["supports_streaming"] is False
    gemini = factories.make_provider(dialect="gemini")
    factories.make_endpoint(endpoint.model, gemini, price=factories.make_price("0.1", "0.1"))
    [row] = list_models(client).values()
    assert row["supports_streaming"] is True
    assert {"seed", "input_references", "quality"} <= row["supported_parameters"].keys()
    own, other = client.get(row["endpoints"]).json()["endpoints"]
    assert (own["provider_slug"], own["supports_streaming"]) == (endpoint.provider.slug, False)
    assert (other["provider_slug"], other["supports_streaming"]) == (gemini.slug, True)
    assert "quality" not in other["supported_parameters"]


def test_prices_are_lines_after_the_discount(client: APIClient, db: None) -> None:
    rules = (
        Rule(Billable.PROMPT, "token", Decimal("0.000008"), "image"),
        Rule(Billable.IMAGE, "image", Decimal("0.04")),
        Rule(Billable.IMAGE, "image", Decimal("0.16"), "1024x1024/high"),
        Rule(Billable.SEARCH, "search", Decimal("0.01")),
    )
    price = replace(
        factories.make_price("0.000005", "0", request="0.001", discount="0.5"), rules=rules
    )
    model = factories.make_model("acme/painter", output_modalities=["image"])
    factories.make_endpoint(model, factories.make_provider(), price=price)
    [endpoint] = client.get(f"{ROUTE}/acme/painter/endpoints").json()["endpoints"]
    assert endpoint["pricing"] == [
        {"billable": "input_text", "unit": "token", "cost_usd": 0.0000025},
        {"billable": "output_image", "unit": "request", "cost_usd": 0.0005},
        {"billable": "input_image", "unit": "token", "cost_usd": 0.000004},
        {"billable": "output_image", "unit": "image", "cost_usd": 0.02},
        {
            "billable": "output_image", "unit": "image", "cost_usd": 0.08,
            "variant": "1024x1024/high",
        },
    ]  # fmt: skip


def test_a_host_of_a_region_lists_what_it_serves(
    client: APIClient, db: None, settings: Any
) -> None:
    settings.REGION_HOSTS = {"eu.example.com": "europe"}
    settings.ALLOWED_HOSTS = ["testserver", "eu.example.com"]
    publish_painter(endpoint_region="us")
    assert list(list_models(client)) == ["acme/painter"]
    assert list_models(client, HTTP_HOST="eu.example.com") == {}
    path = f"{ROUTE}/acme/painter/endpoints"
    assert client.get(path, HTTP_HOST="eu.example.com").status_code == 404


@pytest.mark.parametrize("slug", ["acme/falcon", "acme/unknown"])
def test_a_model_without_images_is_not_found(client: APIClient, db: None, slug: str) -> None:
    publish("acme/falcon")
    response = client.get(f"{ROUTE}/{slug}/endpoints")
    assert response.status_code == 404
    assert slug in response.json()["error"]["message"]
