"""Requests to ``POST /private-endpoints``."""

from __future__ import annotations

import json
from typing import Any

from rest_framework.response import Response
from rest_framework.test import APIClient

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
