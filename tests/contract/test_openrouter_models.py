"""The public Python SDK reads the public catalogue with and without a key."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import cache
from openrouter import OpenRouter, errors

from tests.support import factories
from tests.support.catalogue import publish
from tests.support.contract.clients import MakeOpenRouter
from tests.support.factories import Tenant

PERCENTILES = {"p50": 200, "p75": 200, "p90": 200, "p99": 200}


@pytest.fixture(params=["with a key", "without a key"])
def client(
    request: pytest.FixtureRequest, openrouter_client: MakeOpenRouter, tenant: Tenant
) -> OpenRouter:
    key: Any = tenant.api_key if request.param == "with a key" else None
    return openrouter_client(key)


@pytest.fixture
def catalogue(db: None) -> None:
    """Creates three text models, newest first, and an embedding model at one provider."""
    provider = factories.make_provider(
        "north", name="North Star", headquarters="CH", is_keyless=True
    )
    for number in range(3):
        model = factories.make_model(f"acme/model-{number}.5b", created=1_767_225_600 - number)
        price = factories.make_price(f"0.00000{number + 1}", "0")
        factories.make_endpoint(model, provider, price=price, zdr=number == 1, quantization="fp8")
    embedder = factories.make_model("acme/embedder", output_modalities=["embeddings"])
    factories.make_endpoint(embedder, provider)


def test_models_are_listed_page_by_page(client: OpenRouter, catalogue: None) -> None:
    pages = []
    page: Any = client.models.list(limit=2, sort="pricing-high-to-low")
    while page is not None:
        pages.append([model.id for model in page.result.data])
        assert page.result.total_count == 3
        page = page.next()
    assert pages == [["acme/model-2.5b", "acme/model-1.5b"], ["acme/model-0.5b"]]


def test_models_are_filtered(client: OpenRouter, catalogue: None) -> None:
    page: Any = client.models.list(
        q="MODEL",
        output_modalities="all",
        input_modalities="text",
        context=1000,
        min_price=1.5,
        max_price=3.0,
        max_output_price=0.0,
        arch="Other",
        model_authors="acme",
        providers="North Star",
        zdr="true",
        min_age_days=1,
    )
    assert [model.id for model in page.result.data] == ["acme/model-1.5b"]
    with pytest.raises(errors.BadRequestResponseError):
        client.models.list(min_price=-1.0)


def test_models_are_counted(client: OpenRouter, catalogue: None) -> None:
    assert client.models.count().data.count == 3
    assert client.models.count(output_modalities="all").data.count == 4


def test_a_model_is_found_by_its_name(client: OpenRouter, catalogue: None) -> None:
    for slug in ("model-1.5b", "model-1.5b:free", "model-1.5b-2026-01-01"):
        model = client.models.get(author="acme", slug=slug).data
        assert (model.id, model.pricing.prompt) == ("acme/model-1.5b", "0.000002")
    with pytest.raises(errors.NotFoundResponseError) as caught:
        client.models.get(author="acme", slug="none")
    assert caught.value.data.error.metadata == {"error_type": "model_not_found"}


def test_the_links_of_a_model_lead_to_its_endpoints(client: OpenRouter, catalogue: None) -> None:
    listed: Any = client.models.list()
    for model in listed.result.data:
        *_, author, slug, last = model.links.details.split("/")
        assert last == "endpoints"
        shown = client.endpoints.list(author=author, slug=slug).data
        assert shown.id == model.id
        [endpoint] = shown.endpoints
        assert endpoint.model_id == model.canonical_slug
        assert endpoint.pricing.prompt == model.pricing.prompt
        assert (endpoint.provider_name, endpoint.tag) == ("North Star", "north")
        assert (endpoint.quantization, endpoint.latency_last_30m) == ("fp8", None)
    with pytest.raises(errors.NotFoundResponseError):
        client.endpoints.list(author="acme", slug="none")


def test_endpoint_latency_and_throughput_require_a_key(
    openrouter_client: MakeOpenRouter, tenant: Tenant
) -> None:
    cache.clear()
    endpoint = factories.make_endpoint(
        factories.make_model("acme/falcon"), factories.make_provider(is_keyless=True)
    )
    factories.make_generation(
        tenant,
        model_endpoint=endpoint,
        streamed=True,
        completion_tokens=200,
        latency_ms=200,
        duration_ms=1000,
        attempts=[{"endpoint_id": str(endpoint.pk), "latency_ms": 200, "status": 200}],
    )
    anyone: Any = None
    figures = []
    for key in (tenant.api_key, anyone):
        [shown] = openrouter_client(key).endpoints.list(author="acme", slug="falcon").data.endpoints
        figures += [shown.latency_last_30m, shown.throughput_last_30m]
    assert [figure and figure.model_dump() for figure in figures] == [
        PERCENTILES, PERCENTILES, None, None,
    ]  # fmt: skip


def test_endpoints_without_data_retention_are_listed(client: OpenRouter, catalogue: None) -> None:
    [endpoint] = client.endpoints.list_zdr_endpoints().data
    assert endpoint.model_id == "acme/model-1.5b-2026-01-01"


def test_providers_are_listed(client: OpenRouter, catalogue: None) -> None:
    [provider] = client.providers.list().data
    assert (provider.slug, provider.name, provider.headquarters) == ("north", "North Star", "CH")
    assert provider.privacy_policy_url is None


def test_embedding_models_are_listed(client: OpenRouter, catalogue: None) -> None:
    page: Any = client.embeddings.list_models()
    assert [model.id for model in page.result.data] == ["acme/embedder"]
    assert page.next() is None


def test_an_unknown_key_is_refused(openrouter_client: MakeOpenRouter, catalogue: None) -> None:
    with pytest.raises(errors.OpenRouterError) as caught:
        openrouter_client("sk-unknown").models.list()
    assert caught.value.status_code == 401


def test_image_models_have_descriptors_and_prices(
    openrouter_client: MakeOpenRouter, tenant: Tenant
) -> None:
    publish("acme/painter", "0", "0", output_modalities=["image"])
    images: Any = openrouter_client(tenant.api_key).images
    [row] = images.list_models().data
    assert (row.id, row.supports_streaming) == ("acme/painter", True)
    assert row.supported_parameters["n"].max == 10
    assert "webp" in row.supported_parameters["output_format"].values
    found = images.list_model_endpoints(author="acme", slug="painter")
    [endpoint] = found.endpoints
    assert (found.id, endpoint.pricing, endpoint.supports_streaming) == ("acme/painter", [], True)


def test_models_have_the_price_of_their_endpoint(manager: OpenRouter, tenant: Tenant) -> None:
    model = factories.make_model(
        "acme/falcon",
        supported_parameters=["temperature", "tools"],
        tokenizer=None,
        default_parameters={"temperature": 0.5},
    )
    factories.make_endpoint(
        model,
        factories.make_provider(is_keyless=True),
        price=factories.make_price(cache_read="0.0000001"),
    )
    page = manager.models.list_for_user(security={"bearer": tenant.management_key})
    assert page is not None
    [listed] = page.result.data
    assert listed.canonical_slug == "acme/falcon-2026-01-01"
    assert listed.pricing.model_dump() == {
        "prompt": "0.000001",
        "completion": "0.000002",
        "image": "0",
        "request": "0",
        "input_cache_read": "0.0000001",
    }
    assert listed.architecture.tokenizer == "Other"
    assert listed.supported_parameters == ["temperature", "tools"]
    assert listed.default_parameters is not None
    assert listed.default_parameters.temperature == 0.5
