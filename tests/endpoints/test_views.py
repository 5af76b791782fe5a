"""The three views of a private endpoint, and the callers who cannot see it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from rest_framework.test import APIClient

from accounts.models import ByokCredential
from catalog.models import LanguageModel, Provider
from endpoints.models import PrivateEndpoint, PrivateProvider
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import ROUTE, assert_refused, managed_view
from tests.support.factories import Tenant
from tests.support.governance import named, send
from tests.support.simulator.server import Simulator

# All members, as the newest contract shows them and with our own, of an endpoint that states none.
SETTINGS = {
    "completions": {"chat": None, "text": None},
    "context_length": 131_072,
    "excluded_parameters": [],
    "inputs": dict.fromkeys(("audio", "base64_files", "base64_images", "file_urls", "image_urls")),
    "max_completion_tokens": None,
    "max_prompt_tokens": None,
    "quantization": "unknown",
    "reasoning": {
        "supported": True,
        **dict.fromkeys(("return_mechanism", "switch", "efforts", "must_return")),
    },
    "tool_choice": {"auto": True, "function": True, "none": True, "required": True},
    "roles": {"developer": None, "later_system": None},
    "string_content": None,
    "bound": {
        **dict.fromkeys(("thoughts_beside", "longest_thought", "prompt", "message", "tool")),
        "tokens_per_byte": None,
        "media": dict.fromkeys((
            "image", "image_low", "image_tile", "audio", "audio_least", "audio_second", "video",
            "video_second", "file", "page",
        )),
    },
    "estimate": {},
    "reported_model": None,
    "routing": {"priority": None, "weight": None, "max_in_flight": None},
    "fallback": None,
}  # fmt: skip


@pytest.fixture
def endpoint(
    tenant: Tenant,
    model: LanguageModel,
    provider: Provider,
    credential: ByokCredential,
    upstream: Simulator,
) -> PrivateEndpoint:
    return factories.make_active(
        tenant,
        model,
        provider,
        base_url=upstream.base_url,
        declared_region="us",
        declared_zdr=True,
        price=factories.make_price("0.5", "0.25"),
    )


def managed(endpoint: PrivateEndpoint) -> dict[str, Any]:
    return managed_view(endpoint, status="active", declared_region="us", declared_zdr=True)


def summary(endpoint: PrivateEndpoint) -> dict[str, Any]:
    view = managed(endpoint)
    del view["declared_region"], view["declared_zdr"]
    return view


def full(endpoint: PrivateEndpoint, base_url: str) -> dict[str, Any]:
    view = managed(endpoint) | {
        "provider_slug": "acme",
        "upstream_model_id": "sim-echo",
        "base_url": base_url,
        "pricing": {"prompt": "0.5", "completion": "0.25"},
        "settings": SETTINGS,
        "declared_parameters": [],
        "tested_parameters": [],
        "max_completion_tokens": None,
        "supported_parameters": [],
    }
    del view["created_at"]
    return view


def test_the_list_shows_summaries(management: APIClient, endpoint: PrivateEndpoint) -> None:
    response = management.get(ROUTE)
    assert response.status_code == 200
    assert response.json() == {"data": [summary(endpoint)]}


def test_the_list_shows_drafts_oldest_first_and_no_deleted_endpoints(
    management: APIClient, tenant: Tenant, model: LanguageModel, provider: Provider
) -> None:
    first, second, third = (factories.make_draft(tenant, model, provider) for _ in range(3))
    second.remove()
    assert [row["id"] for row in management.get(ROUTE).json()["data"]] == [
        str(first.pk),
        str(third.pk),
    ]


def test_the_list_is_empty_without_endpoints(management: APIClient) -> None:
    assert management.get(ROUTE).json() == {"data": []}


def test_the_list_ignores_unknown_query_parameters(
    management: APIClient, endpoint: PrivateEndpoint
) -> None:
    assert management.get(f"{ROUTE}?limit=0&state=draft").json() == {"data": [summary(endpoint)]}


def test_the_list_is_filtered_by_status_model_and_provider(
    management: APIClient, tenant: Tenant, provider: Provider
) -> None:
    own = PrivateProvider.objects.create_provider(
        organization_id=tenant.organization.pk,
        name="My Rack",
        base_url="https://llm.example.com/v1",
    )
    slugs = {"acme/one": provider.slug, "acme/two": provider.slug, "acme/three": own.slug}
    for slug, provider_slug in slugs.items():
        PrivateEndpoint.objects.create_draft(
            organization_id=tenant.organization.pk,
            model_permaslug=factories.make_model(slug).canonical_slug,
            provider_slug=provider_slug,
            upstream_model_id="sim-echo",
            base_url="https://llm.example.com/v1",
        )
    disabled = PrivateEndpoint.objects.get(model__slug="acme/two")
    PrivateEndpoint.objects.filter(pk=disabled.pk).update(
        status="disabled", activated_at=disabled.created_at, disabled_at=disabled.created_at
    )

    def listed(query: str) -> list[str]:
        rows = management.get(f"{ROUTE}?{query}").json()["data"]
        return [row["model_slug"].removeprefix("acme/") for row in rows]

    assert listed("status=draft") == ["one", "three"]
    assert listed("status=disabled") == ["two"]
    assert listed("status=active") == []
    assert listed("model=acme/two") == listed("model=acme/two-2026-01-01") == ["two"]
    assert listed(f"provider={own.slug}") == ["three"]
    assert listed(f"provider={provider.slug}&status=draft") == ["one"]
    assert listed("model=") == listed("provider=unknown") == []
    other = factories.client(factories.make_tenant("Other").management_key)
    assert other.get(f"{ROUTE}?provider={provider.slug}").json() == {"data": []}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *((f"status={value}", "status") for value in ("", "deleted", "Active", "draft,active")),
        ("model=a%00", "model"),
        # A field of the rows by which they cannot be filtered.
        ("model_slug=acme/falcon&state=x", "model_slug"),
        ("id=1", "id"),
    ],
)
def test_the_list_refuses_a_filter_that_it_does_not_have(
    management: APIClient, endpoint: PrivateEndpoint, query: str, field: str
) -> None:
    error = assert_refused(management.get(f"{ROUTE}?{query}"), 400, "invalid_request")
    assert set(error["metadata"]["fields"]) == {field}


def test_the_list_takes_a_constant_number_of_queries(
    management: APIClient, tenant: Tenant, provider: Provider
) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert management.get(ROUTE).status_code == 200
        return len(captured)

    factories.make_draft(tenant, factories.make_model(), provider)
    few = queries()
    for _ in range(20):
        factories.make_draft(tenant, factories.make_model(), factories.make_provider())
    assert (few, queries()) == (2, 2)


def test_get_shows_the_full_view(
    management: APIClient, endpoint: PrivateEndpoint, upstream: Simulator
) -> None:
    response = management.get(f"{ROUTE}/{endpoint.pk}")
    assert response.status_code == 200
    assert response.json() == {"data": full(endpoint, upstream.base_url)}


def test_get_accepts_an_id_in_capitals(management: APIClient, endpoint: PrivateEndpoint) -> None:
    response = management.get(f"{ROUTE}/{str(endpoint.pk).upper()}")
    assert response.json()["data"]["id"] == str(endpoint.pk)


def test_put_pricing_returns_the_full_view(
    management: APIClient, endpoint: PrivateEndpoint, upstream: Simulator
) -> None:
    response = management.put(
        f"{ROUTE}/{endpoint.pk}/pricing", {"pricing": {"prompt": "0.5", "completion": "0.25"}}
    )
    assert response.json() == {"data": full(endpoint, upstream.base_url)}


def test_enable_and_disable_return_the_managed_view(
    management: APIClient, endpoint: PrivateEndpoint
) -> None:
    for verb, status in (("disable", "disabled"), ("enable", "active")):
        response = management.post(f"{ROUTE}/{endpoint.pk}/{verb}")
        assert response.status_code == 200
        assert response.json()["data"] == managed(endpoint) | {"status": status}
        assert ("traffic" in response.json()) == (verb == "disable")


def test_an_unlisted_model_and_provider_lose_their_slugs(
    management: APIClient, endpoint: PrivateEndpoint
) -> None:
    endpoint.model.delist()
    endpoint.provider.delist()
    data = management.get(f"{ROUTE}/{endpoint.pk}").json()["data"]
    assert (data["model_permaslug"], data["model_slug"], data["model_name"]) == (
        "acme/falcon-2026-01-01",
        None,
        None,
    )
    assert (data["provider_slug"], data["provider_name"]) == (None, "Acme AI")


def test_an_endpoint_keeps_the_old_name_of_a_renamed_provider(
    management: APIClient, endpoint: PrivateEndpoint
) -> None:
    endpoint.provider.name = "Renamed"
    endpoint.provider.save_fields("name")
    assert management.get(ROUTE).json()["data"][0]["provider_name"] == "Acme AI"


CALLS: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "get": ("get", "", None),
    "patch": ("patch", "", {"upstream_model_id": "x"}),
    "delete": ("delete", "", None),
    "activate": ("post", "/activate", None),
    "enable": ("post", "/enable", None),
    "disable": ("post", "/disable", None),
    "validate": ("post", "/validate", {"workspace_id": str(uuid4())}),
    "pricing": ("put", "/pricing", {"pricing": {"prompt": "1", "completion": "1"}}),
    "timeouts": ("put", "/timeouts", {"timeouts": {"total": 5}}),
}


def call(client: APIClient, name: str, endpoint_id: str) -> Any:
    method, suffix, body = CALLS[name]
    return getattr(client, method)(f"{ROUTE}/{endpoint_id}{suffix}", body)


@pytest.mark.parametrize("name", CALLS)
def test_a_foreign_endpoint_is_not_found(endpoint: PrivateEndpoint, name: str) -> None:
    foreigner = factories.client(factories.make_tenant("Other").management_key)
    with snapshots.unchanged():
        foreign = call(foreigner, name, str(endpoint.pk))
        unknown = call(foreigner, name, str(uuid4()))
        assert foreign.status_code == 404
        assert foreign.json() == unknown.json()
        assert foreign.json() == {
            "error": {
                "code": 404,
                "message": "The private endpoint does not exist.",
                "metadata": {"error_type": "endpoint_not_found"},
            }
        }
    assert foreigner.get(ROUTE).json() == {"data": []}


@pytest.mark.parametrize("name", CALLS)
def test_a_malformed_id_is_not_found(management: APIClient, name: str) -> None:
    for endpoint_id in ("x", "0", "%00", "..%2f..", "{}", "0" * 32, "%D9%A3", "'%20OR%201=1--"):
        response = call(management, name, endpoint_id)
        assert (endpoint_id, response.status_code) == (endpoint_id, 404)
        assert response.json()["error"]["code"] == 404


@pytest.mark.parametrize("name", CALLS)
def test_an_inference_key_may_not_manage_endpoints(
    inference: APIClient, endpoint: PrivateEndpoint, name: str
) -> None:
    with snapshots.unchanged():
        response = call(inference, name, str(endpoint.pk))
        assert response.status_code == 403
        assert response.json()["error"]["metadata"] == {"error_type": "permission_denied"}


FULL_PRICING = {
    "prompt": "0.000003",
    "completion": "0.000015",
    "cache_read": "0.0000003",
    "input_cache_write_1h": "0.000006",
    "web_search": "0.01",
    "discount": 0.25,
    "overrides": [{"min_prompt_tokens": 200_000, "prompt": "0.000006"}],
}
LINE = {"billable": "image", "unit": "image", "variant": "1024x1024/high", "price": "0.167"}


@pytest.mark.parametrize("place", ["beside", "inside"])
def test_put_pricing_takes_every_key_and_lines(
    management: APIClient, endpoint: PrivateEndpoint, place: str
) -> None:
    body: dict[str, Any] = {"pricing": dict(FULL_PRICING)}
    (body if place == "beside" else body["pricing"])["lines"] = [LINE]
    response = management.put(f"{ROUTE}/{endpoint.pk}/pricing", body)
    assert response.status_code == 200, response.content
    data = response.json()["data"]
    assert data["pricing"] == FULL_PRICING
    assert data["lines"] == [LINE]
    assert management.get(f"{ROUTE}/{endpoint.pk}").json()["data"] == data
    simple = {"prompt": "1", "completion": "2"}
    data = management.put(f"{ROUTE}/{endpoint.pk}/pricing", {"pricing": simple}).json()["data"]
    assert data["pricing"] == simple
    assert "lines" not in data


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"pricing": FULL_PRICING | {"input_cache_read": "1"}}, "pricing.cache_read"),
        ({"pricing": FULL_PRICING | {"discount": 1.5}}, "pricing.discount"),
        ({"pricing": FULL_PRICING | {"audio": "-1"}}, "pricing.audio"),
        (
            {"pricing": FULL_PRICING | {"overrides": [{"utc_start": 100, "prompt": "1"}]}},
            "pricing.overrides[0].utc_end",
        ),
        ({"pricing": FULL_PRICING, "lines": [LINE | {"unit": "pixel"}]}, "lines[0].unit"),
        ({"pricing": FULL_PRICING, "lines": [LINE, LINE]}, "lines[1]"),
        ({"pricing": FULL_PRICING, "lines": [LINE | {"colour": "red"}]}, "colour"),
        ({"pricing": FULL_PRICING | {"lines": [LINE]}, "lines": [LINE]}, "lines"),
        ({"pricing": FULL_PRICING, "lines": "free"}, "lines"),
        (
            {"pricing": FULL_PRICING, "lines": [{"unit": "image"}, LINE, {}]},
            "lines[0].billable, lines[0].price, lines[2].billable, lines[2].unit, lines[2].price:",
        ),
    ],
)
def test_put_pricing_names_the_wrong_member_and_changes_nothing(
    management: APIClient, endpoint: PrivateEndpoint, body: dict[str, Any], name: str
) -> None:
    with snapshots.unchanged():
        response = management.put(f"{ROUTE}/{endpoint.pk}/pricing", body)
        assert response.status_code == 400, response.content
        assert name in response.json()["error"]["message"]


@pytest.mark.parametrize("text", ["\x00", "\ud800"])
@pytest.mark.parametrize(
    ("method", "place"), [("POST", ""), ("PATCH", "/{id}"), ("PUT", "/{id}/pricing")]
)
def test_a_variant_that_cannot_be_stored_is_refused_by_its_place(
    management: APIClient,
    endpoint: PrivateEndpoint,
    request_body: dict[str, Any],
    method: str,
    place: str,
    text: str,
) -> None:
    body = {"pricing": FULL_PRICING, "lines": [LINE | {"variant": text}]}
    path = f"private-endpoints{place.format(id=endpoint.pk)}"
    with snapshots.unchanged():
        answer = send(management, method, path, request_body | body if method == "POST" else body)
    assert named(answer) == (400, {"lines[0].variant"})
