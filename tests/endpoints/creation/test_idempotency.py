"""``POST /private-endpoints`` with an ``Idempotency-Key``."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import KEY, ROUTE, assert_refused, post
from tests.support.factories import Tenant
from tests.support.simulator.server import Simulator


def test_a_repeated_key_returns_the_first_endpoint(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    first = post(management, request_body, **KEY)
    with snapshots.unchanged():
        again = post(management, request_body, **KEY)
        assert (first.status_code, again.status_code) == (201, 201)
        assert again.json() == first.json()


def test_a_repeated_key_returns_the_current_state_of_the_endpoint(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    first = post(management, request_body, **KEY).json()["data"]
    management.patch(
        f"{ROUTE}/{first['id']}", {"upstream_model_id": "edited", "declared_zdr": True}
    )
    again = post(management, request_body, **KEY)
    assert again.status_code == 201
    assert again.json()["data"] == first | {"declared_zdr": True}
    assert PrivateEndpoint.objects.get().upstream_model_id == "edited"


@pytest.mark.parametrize(
    "change",
    [
        {"upstream_model_id": "other"},
        {"base_url": "https://other.example.com/v1"},
        {"declared_region": "us"},
        {"declared_zdr": False},
        {"pricing": {"prompt": "0", "completion": "0"}},
        {"model_permaslug": "acme/other-2026-01-01"},
        {"provider_slug": "other"},
        {"declared_parameters": ["seed"]},
    ],
)
def test_a_key_reused_for_another_body_is_refused(
    management: APIClient, request_body: dict[str, Any], change: dict[str, Any]
) -> None:
    factories.make_model("acme/other")
    factories.make_provider("other")
    assert post(management, request_body, **KEY).status_code == 201
    with snapshots.unchanged():
        error = assert_refused(
            post(management, request_body | change, **KEY), 422, "idempotency_key_reused"
        )
        assert error["message"].startswith("idempotency_key_reused: ")


@pytest.mark.parametrize(
    "change",
    [
        {"declared_region": None, "declared_zdr": None},
        {"base_url": "HTTPS://llm.example.com:443/v1/"},
        {"activate": {"workspace_id": "00000000-0000-4000-8000-000000000000"}},
        {"settings": {"fallback": "none", "context_length": 4_096}},
        {"declared_parameters": []},
    ],
)
def test_a_repeated_key_ignores_equivalent_values_and_activate(
    management: APIClient, request_body: dict[str, Any], change: dict[str, Any]
) -> None:
    first = post(management, request_body, **KEY)
    with snapshots.unchanged():
        again = post(management, request_body | change, **KEY)
        assert again.status_code == 201
        assert again.json() == first.json()


def test_a_repeated_key_compares_declared_parameters_as_a_set(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    one = request_body | {"declared_parameters": ["seed", "stop"]}
    same = request_body | {"declared_parameters": ["stop", "seed", "stop"]}
    first = post(management, one, **KEY)
    assert first.status_code == 201
    assert post(management, same, **KEY).json() == first.json()
    assert PrivateEndpoint.objects.get().declared_parameters == ["seed", "stop"]


def test_a_repeated_key_checks_settings_all_the_same(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    assert post(management, request_body, **KEY).status_code == 201
    with snapshots.unchanged():
        for settings in (
            {"completions": {"chat": False, "text": False}},
            # More than the context of the model.
            {"max_prompt_tokens": 131_073},
        ):
            again = post(management, request_body | {"settings": settings}, **KEY)
            assert_refused(again, 400, "settings_invalid")


def test_a_repeated_key_compares_prices_as_numbers(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    one = request_body | {"pricing": {"prompt": "0.10", "completion": "01"}}
    same = request_body | {"pricing": {"completion": "1.0", "prompt": "0.1"}}
    assert post(management, one, **KEY).status_code == 201
    assert post(management, same, **KEY).status_code == 201
    assert PrivateEndpoint.objects.count() == 1


def test_a_repeated_key_opens_no_connection_even_with_activate(
    management: APIClient, tenant: Tenant, request_body: dict[str, Any], upstream: Simulator
) -> None:
    body = request_body | {"base_url": upstream.base_url}
    assert post(management, body, **KEY).status_code == 201
    body["activate"] = {"workspace_id": str(tenant.workspace.pk)}
    again = post(management, body, **KEY)
    assert again.status_code == 201
    assert again.json()["data"]["status"] == "draft"
    assert upstream.connections == 0


@pytest.mark.parametrize("key", ["a", " ", "a" * 255, "~!@#$%^&*() {}"])
def test_create_accepts_a_valid_key(
    management: APIClient, request_body: dict[str, Any], key: str
) -> None:
    assert post(management, request_body, **{"Idempotency-Key": key}).status_code == 201
    assert PrivateEndpoint.objects.get().idempotency_key == key


@pytest.mark.parametrize("key", ["", "a" * 256, "é", "a\tb", "a\x7f"])
def test_create_refuses_an_invalid_key(
    management: APIClient, request_body: dict[str, Any], key: str
) -> None:
    with snapshots.unchanged():
        error = assert_refused(
            post(management, request_body, **{"Idempotency-Key": key}), 400, "invalid_request"
        )
        assert error["message"].startswith("Idempotency-Key: ")


def test_the_key_of_a_deleted_endpoint_stays_reserved(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    first = post(management, request_body, **KEY).json()["data"]["id"]
    assert management.delete(f"{ROUTE}/{first}").status_code == 200
    with snapshots.unchanged():
        assert_refused(post(management, request_body, **KEY), 404, "not_found")
        other = request_body | {"upstream_model_id": "other"}
        assert_refused(post(management, other, **KEY), 422, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"upstream_model_id": ""}, 400),
        ({"model_permaslug": "acme/unknown"}, 404),
        ({"provider_slug": "unknown"}, 404),
        ({"base_url": "http://llm.example.com"}, 422),
    ],
)
def test_a_refused_request_does_not_consume_the_key(
    management: APIClient, request_body: dict[str, Any], change: dict[str, Any], status: int
) -> None:
    assert post(management, request_body | change, **KEY).status_code == status
    assert post(management, request_body, **KEY).status_code == 201


def test_a_key_belongs_to_its_organization(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    other = factories.client(factories.make_tenant("Other").management_key)
    first = post(management, request_body, **KEY).json()["data"]["id"]
    second = post(other, request_body | {"upstream_model_id": "other"}, **KEY)
    assert second.status_code == 201
    assert second.json()["data"]["id"] != first


def test_creates_without_a_key_make_separate_endpoints(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    ids = {post(management, request_body).json()["data"]["id"] for _ in range(3)}
    assert len(ids) == 3
