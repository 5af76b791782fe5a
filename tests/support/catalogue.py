"""A small catalogue for the tests of the public lists."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec
from rest_framework.test import APIClient

from catalog.models import CatalogProposal, ModelEndpoint
from catalog.rows import endpoint_row
from catalog.sync.planning import digest_of
from config.api.text import plain_digits
from tests.support import factories
from tests.support.factories import Tenant

ROUTE = "/api/v1/models"
USER_ROUTE = "/api/v1/models/user"
EMBEDDINGS = "/api/v1/embeddings/models"
DAY = 86_400


def ids(client: APIClient, query: str = "", route: str = ROUTE) -> list[str]:
    response = client.get(f"{route}{query}")
    assert response.status_code == 200, response.content
    body = response.json()
    assert body["total_count"] == len(body["data"])
    return [row["id"] for row in body["data"]]


def publish(
    slug: str, prompt: str = "0.000001", completion: str = "0.000002", **fields: Any
) -> ModelEndpoint:
    """Publishes a model with its own provider, which takes no key.

    The fields ``endpoint_…`` belong to the endpoint.
    """
    own = {
        name.removeprefix("endpoint_"): fields.pop(name)
        for name in list(fields)
        if name.startswith("endpoint_")
    }
    provider = own.pop("provider", None) or factories.make_provider(is_keyless=True)
    price = factories.make_price(prompt, completion)
    return factories.make_endpoint(
        factories.make_model(slug, **fields), provider, price=price, **own
    )


def publish_privately(tenant: Tenant, slug: str, **fields: Any) -> Any:
    """Creates a model that only a private endpoint serves."""
    provider = factories.make_provider()
    endpoint = factories.make_draft(tenant, factories.make_model(slug, **fields), provider)
    factories.make_validation(endpoint, factories.make_credential(tenant, provider))
    endpoint.activate()
    return endpoint


def spend(tenant: Tenant, endpoint: ModelEndpoint, **fields: Any) -> None:
    """Stores a generation of 100 + 50 tokens: a stream of one second that began after 200 ms.

    The argument ``attempt`` changes the record of its only attempt.
    """
    attempt = {
        "provider": endpoint.provider.name,
        "endpoint_id": str(endpoint.pk),
        "is_byok": False,
        "latency_ms": fields.get("latency_ms", 200),
        "status": 200,
        **fields.pop("attempt", {}),
    }
    defaults = {
        "streamed": True,
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "latency_ms": 200,
        "duration_ms": 1000,
        "attempts": [attempt],
    }
    factories.make_generation(tenant, model_endpoint=endpoint, **{**defaults, **fields})


FALCON, HAWK, OWL, WREN = "acme/falcon", "acme/hawk", "birds/owl", "birds/wren"


def make_proposal(endpoint: ModelEndpoint, **fields: Any) -> CatalogProposal:
    """A waiting proposal of a price list to double the completion price of an endpoint."""
    row = msgspec.to_builtins(endpoint_row(endpoint))
    new = plain_digits(endpoint.price.completion * 2)
    row["pricing"]["completion"] = new
    old = plain_digits(endpoint.price.completion)
    change = {"column": "pricing.completion", "old": old, "new": new, "percent": "100"}
    defaults = {
        "source": "litellm",
        "as_of": date(2026, 11, 12),
        "subject": f"{endpoint.model.canonical_slug} {endpoint.provider.slug}",
        "endpoint_id": endpoint.pk,
        "reason": "rise",
        "changes": [change],
        "content": {"providers": [], "models": [], "endpoints": [row]},
        "basis": digest_of(endpoint),
    }
    return CatalogProposal.objects.create(**{**defaults, **fields})
