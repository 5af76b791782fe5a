"""Requests to ``POST /private-endpoints``."""

from __future__ import annotations

import json
from typing import Any

from rest_framework.response import Response
from rest_framework.test import APIClient

from catalog.models import LanguageModel, Provider
from endpoints.models import PrivateEndpoint

ROUTE = "/api/v1/private-endpoints"
KEY = {"Idempotency-Key": "order-1"}


def post(client: APIClient, body: Any, **headers: str) -> Response:
    """Sends the body in ASCII, so that it can carry lone surrogates."""
    return client.generic(
        "POST", ROUTE, json.dumps(body), content_type="application/json", headers=headers
    )


def assert_refused(response: Response, status: int, error_type: str) -> dict[str, Any]:
    """Asserts the standard envelope and returns its ``error``."""
    assert response.status_code == status, response.content
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["code", "message", "metadata"]
    assert body["error"]["code"] == status
    assert body["error"]["metadata"]["error_type"] == error_type
    return body["error"]


def body_of(model: LanguageModel, provider: Provider, **fields: Any) -> dict[str, Any]:
    """Returns a create request that has the required fields and these."""
    return {
        "model_permaslug": model.canonical_slug,
        "provider_slug": provider.slug,
        "upstream_model_id": "sim-echo",
        "base_url": "https://llm.example.com/v1",
        **fields,
    }


def managed_view(endpoint: PrivateEndpoint, **fields: Any) -> dict[str, Any]:
    """Returns what managers see of a draft of Acme's Falcon that declares nothing."""
    return {
        "id": str(endpoint.pk),
        "status": "draft",
        "model_permaslug": "acme/falcon-2026-01-01",
        "model_slug": "acme/falcon",
        "model_name": "Acme: Falcon",
        "provider_name": "Acme AI",
        "created_at": endpoint.created_at.isoformat().replace("+00:00", "Z"),
        "declared_zdr": None,
        "declared_region": None,
        **fields,
    }
