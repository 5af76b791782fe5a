"""``POST /private-endpoints`` without ``activate``."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from rest_framework.response import Response
from rest_framework.test import APIClient

from catalog.models import LanguageModel, Provider
from catalog.pricing import Price
from config.local.simulator.server import Simulator
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.database import snapshots
from tests.support.factories import Tenant

ROUTE = "/api/v1/private-endpoints"
MANAGED = {
    "id",
    "status",
    "model_permaslug",
    "model_slug",
    "model_name",
    "provider_name",
    "created_at",
    "declared_zdr",
    "declared_region",
}
ABSENT = object()


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


def test_create_returns_the_managed_view_of_a_draft(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    response = post(management, request_body)
    assert response.status_code == 201
    assert list(response.json()) == ["data"]
    data = response.json()["data"]
    assert set(data) == MANAGED
    stored = PrivateEndpoint.objects.get()
    assert data == {
        "id": str(stored.pk),
        "status": "draft",
        "model_permaslug": "acme/falcon-2026-01-01",
        "model_slug": "acme/falcon",
        "model_name": "Acme: Falcon",
        "provider_name": "Acme AI",
        "created_at": stored.created_at.isoformat().replace("+00:00", "Z"),
        "declared_zdr": None,
        "declared_region": None,
    }


def test_create_stores_every_field(
    management: APIClient, tenant: Tenant, request_body: dict[str, Any]
) -> None:
    response = post(
        management,
        request_body
        | {
            "declared_region": "europe",
            "declared_zdr": True,
            "pricing": {"prompt": "0.0000005", "completion": "0.00000150", "cache_read": "0"},
        },
    )
    assert response.status_code == 201
    stored = PrivateEndpoint.objects.get()
    assert stored.organization == tenant.organization
    assert stored.status == "draft"
    assert stored.model.canonical_slug == "acme/falcon-2026-01-01"
    assert stored.provider.slug == "acme"
    assert stored.upstream_model_id == "sim-echo"
    assert stored.base_url == "https://llm.example.com/v1"
    assert (stored.declared_region, stored.declared_zdr) == ("europe", True)
    assert stored.price.price == factories.make_price("0.0000005", "0.0000015", cache_read="0")
    assert stored.price.subject_id == stored.pk
    assert stored.validation is None
    assert (stored.activated_at, stored.disabled_at, stored.deleted_at) == (None, None, None)
    assert response.json()["data"]["declared_region"] == "europe"
    assert response.json()["data"]["declared_zdr"] is True


STRINGS = (None, 5, 1.5, True, [], {}, ["x"], "", "a\x00b", "a\n", "\x7f", "\x85", "\ud800")
RATES = (
    *(None, 1, 0.1, True, [], {}, "", " ", "-1", "+1", "1e-6", "1E5", ".5", "1.", "1,5", "1.2.3"),
    *(" 1", "1 ", "1\n", "1\x00", "٣", "１", "NaN", "Infinity", "0x1", "$1"),
    *("1000000", "0." + "1" * 31, "0" * 65),
)
UUIDS = (
    *(None, 5, True, [], {}, "", "abc", "0" * 32, "{00000000-0000-4000-8000-000000000000}"),
    *("urn:uuid:00000000-0000-4000-8000-000000000000", "00000000-0000-4000-8000-000000000000\n"),
)
MALFORMED: list[tuple[str, Any, str]] = [
    *(
        (name, value, name)
        for name in ("model_permaslug", "provider_slug", "upstream_model_id")
        for value in (ABSENT, *STRINGS, "a" * 256)
    ),
    *(
        ("base_url", value, "base_url")
        for value in (*STRINGS[1:], "https://example.com/" + "a" * 2029)
    ),
    *(
        ("declared_region", value, "declared_region")
        for value in ("", "eu", "Europe", "us ", "asia", 1, True, [], {}, ["us"])
    ),
    *(
        ("declared_zdr", value, "declared_zdr")
        for value in ("true", "yes", "", "null", 0, 1, 1.0, [], {})
    ),
    *(("pricing", value, "pricing") for value in (None, "0.1", 1, True, [])),
    ("pricing", {}, "pricing.prompt"),
    ("pricing", {"prompt": "1"}, "pricing.completion"),
    ("pricing", {"completion": "1"}, "pricing.prompt"),
    ("pricing", {"prompt": "1", "completion": "1", "images": "1"}, "pricing.images"),
    ("pricing", {"prompt": "1", "completion": "1", "image": 1}, "pricing.image"),
    ("pricing", {"prompt": "1", "completion": "1", "discount": 2}, "pricing.discount"),
    (
        "pricing",
        {"prompt": "1", "completion": "1", "overrides": [{"prompt": "2"}]},
        "pricing.overrides[0]",
    ),
    ("lines", [{"billable": "second", "unit": "second", "price": "1"}], "lines"),
    *(
        ("pricing", {"prompt": "1", "completion": "1"} | {name: value}, f"pricing.{name}")
        for name, values in (
            ("prompt", RATES),
            ("completion", RATES[:8]),
            ("cache_read", RATES[:8]),
            ("cache_write", RATES[:8]),
        )
        for value in values
    ),
    *(("activate", value, "activate") for value in (None, "yes", True, 1, [])),
    ("activate", {}, "activate.workspace_id"),
    *(("activate", {"workspace_id": value}, "activate.workspace_id") for value in UUIDS),
    (
        "activate",
        {"workspace_id": "00000000-0000-4000-8000-000000000000", "force": True},
        "activate.force",
    ),
    *(
        (name, "x", name)
        for name in ("status", "id", "organization_id", "Base_url", "idempotency_key")
    ),
]


@pytest.mark.parametrize(("field", "value", "named"), MALFORMED)
def test_create_names_a_malformed_field(
    management: APIClient, request_body: dict[str, Any], field: str, value: Any, named: str
) -> None:
    if value is ABSENT:
        del request_body[field]
    else:
        request_body[field] = value
    before = snapshots.everything()
    error = assert_refused(post(management, request_body), 400, "invalid_request")
    assert named in error["metadata"]["fields"]
    assert {name.partition(".")[0] for name in error["metadata"]["fields"]} == {field}
    assert snapshots.everything() == before


@pytest.mark.parametrize("name", ["", "\x00", "\x85", "\ud800"])
def test_create_refuses_an_unprintable_field_name(
    management: APIClient, request_body: dict[str, Any], name: str
) -> None:
    before = snapshots.everything()
    assert_refused(post(management, request_body | {name: 1}), 400, "invalid_request")
    assert snapshots.everything() == before


def test_create_names_every_malformed_field(management: APIClient) -> None:
    error = assert_refused(post(management, {"declared_zdr": "no"}), 400, "invalid_request")
    assert set(error["metadata"]["fields"]) == {
        "model_permaslug",
        "provider_slug",
        "upstream_model_id",
        "declared_zdr",
    }


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("upstream_model_id", "a"),
        ("upstream_model_id", "a" * 255),
        ("upstream_model_id", " kept as it is "),
        ("upstream_model_id", "modèle-✓"),
        ("base_url", "https://example.com/" + "a" * 2028),
        ("declared_region", "global"),
        ("declared_region", "us"),
        ("declared_region", None),
        ("declared_zdr", False),
        ("declared_zdr", None),
    ],
)
def test_create_stores_valid_values_unchanged(
    management: APIClient, request_body: dict[str, Any], field: str, value: Any
) -> None:
    assert post(management, request_body | {field: value}).status_code == 201
    assert getattr(PrivateEndpoint.objects.get(), field) == value


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("0", "0"),
        ("00.10", "0.1"),
        ("1.", None),
        ("999999", "999999"),
        ("999999." + "9" * 30, "999999." + "9" * 30),
        ("0." + "0" * 29 + "1", "0." + "0" * 29 + "1"),
        ("100", "100"),
    ],
)
def test_create_keeps_every_digit_of_a_rate(
    management: APIClient, request_body: dict[str, Any], sent: str, shown: str | None
) -> None:
    body = request_body | {"pricing": {"prompt": sent, "completion": "0"}}
    response = post(management, body)
    if shown is None:
        assert_refused(response, 400, "invalid_request")
        return
    full = management.get(f"{ROUTE}/{response.json()['data']['id']}").json()["data"]
    assert full["pricing"] == {"prompt": shown, "completion": "0"}


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("https://llm.example.com", "https://llm.example.com"),
        ("https://llm.example.com/", "https://llm.example.com"),
        ("HTTPS://LLM.Example.com:443/V1/", "https://llm.example.com/V1"),
        ("https://llm.example.com:8443/v1", "https://llm.example.com:8443/v1"),
        ("https://llm.example.com/%7Euser", "https://llm.example.com/~user"),
        ("https://1.1.1.1/v1", "https://1.1.1.1/v1"),
        ("https://[2606:4700::1111]/v1", "https://[2606:4700::1111]/v1"),
        ("https://localhost:8443", "https://localhost:8443"),
        ("https://llm.corp.internal/v1", "https://llm.corp.internal/v1"),
    ],
)
def test_create_stores_the_canonical_form_of_a_base_url(
    management: APIClient, request_body: dict[str, Any], sent: str, stored: str
) -> None:
    assert post(management, request_body | {"base_url": sent}).status_code == 201
    assert PrivateEndpoint.objects.get().base_url == stored


@pytest.mark.parametrize(
    "base_url",
    [
        ABSENT,
        None,
        "x",
        "not a url",
        "//example.com/v1",
        "example.com/v1",
        "https://",
        "https:///v1",
        "http://llm.example.com/v1",
        "ftp://llm.example.com/v1",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://user:password@llm.example.com/v1",
        "https://user@llm.example.com/v1",
        "https://llm.example.com/v1?key=x",
        "https://llm.example.com/v1#fragment",
        "https://llm.example.com\\@evil.example/v1",
        "https://llm.example.com/../admin",
        "https://llm.example.com/a//b",
        "https://llm.example.com/%2e%2e/admin",
        "https://llm.example.com/%00",
        "https://llm.example.com:0/v1",
        "https://llm.example.com:65536/v1",
        "https://llm.example.com:/v1",
        "https://llm.example.com:22/v1",
        "https://llm.example.com:80/v1",
        "https://llm.example.com:5432/v1",
        "https://llm.example.com:6379/v1",
        "https://exämple.com/v1",
        "https://１２７.0.0.1/v1",
        "https://127.1/v1",
        "https://2130706433/v1",
        "https://0x7f000001/v1",
        "https://017700000001/v1",
        "https://127.0.0.1/v1",
        "https://10.0.0.1/v1",
        "https://172.16.0.1/v1",
        "https://192.168.1.1/v1",
        "https://100.64.0.1/v1",
        "https://0.0.0.0/v1",
        "https://255.255.255.255/v1",
        "https://224.0.0.1/v1",
        "https://169.254.169.254/latest/meta-data",
        "https://168.63.129.16/v1",
        "https://192.0.0.192/v1",
        "https://[::]/v1",
        "https://[::1]/v1",
        "https://[::ffff:127.0.0.1]/v1",
        "https://[::ffff:169.254.169.254]/v1",
        "https://[64:ff9b::7f00:1]/v1",
        "https://[2002:7f00:1::]/v1",
        "https://[fd00:ec2::254]/v1",
        "https://[fe80::1]/v1",
        "https://[fe80::1%25eth0]/v1",
        "https://[ff02::1]/v1",
    ],
)
def test_create_refuses_a_forbidden_base_url(
    management: APIClient, request_body: dict[str, Any], settings: Any, base_url: Any
) -> None:
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, allowed_networks=())
    if base_url is ABSENT:
        del request_body["base_url"]
    else:
        request_body["base_url"] = base_url
    before = snapshots.everything()
    error = assert_refused(post(management, request_body), 422, "invalid_base_url")
    assert error["message"].startswith("invalid_base_url: ")
    assert snapshots.everything() == before


def test_create_opens_no_connection(
    management: APIClient,
    request_body: dict[str, Any],
    upstream: Simulator,
    settings: Any,
) -> None:
    assert post(management, request_body | {"base_url": upstream.base_url}).status_code == 201
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, allowed_networks=())
    response = post(management, request_body | {"base_url": upstream.base_url})
    assert_refused(response, 422, "invalid_base_url")
    assert upstream.connections == 0


def test_create_requires_https_in_an_allowed_network(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    before = snapshots.everything()
    response = post(management, request_body | {"base_url": "http://127.0.0.1:8080/v1"})
    assert_refused(response, 422, "invalid_base_url")
    assert snapshots.everything() == before


@pytest.mark.parametrize("base_url", [ABSENT, None])
def test_create_needs_no_base_url_if_the_credential_contains_it(
    management: APIClient, request_body: dict[str, Any], cloud: Provider, base_url: Any
) -> None:
    del request_body["base_url"]
    if base_url is None:
        request_body["base_url"] = None
    response = post(management, request_body | {"provider_slug": cloud.slug})
    assert response.status_code == 201
    full = management.get(f"{ROUTE}/{response.json()['data']['id']}").json()["data"]
    assert full["base_url"] is None


def test_create_refuses_a_base_url_if_the_credential_contains_it(
    management: APIClient, request_body: dict[str, Any], cloud: Provider
) -> None:
    before = snapshots.everything()
    response = post(management, request_body | {"provider_slug": cloud.slug})
    error = assert_refused(response, 422, "invalid_base_url")
    assert error["message"] == (
        "invalid_base_url: Azure takes its URL from the credential; leave base_url out."
    )
    assert snapshots.everything() == before


@pytest.mark.parametrize(
    ("field", "value", "error_type"),
    [
        ("model_permaslug", "acme/unknown", "model_not_found"),
        ("model_permaslug", "acme/falcon", "model_not_found"),
        ("model_permaslug", "ACME/falcon-2026-01-01", "model_not_found"),
        ("model_permaslug", " acme/falcon-2026-01-01", "model_not_found"),
        ("provider_slug", "unknown", "provider_not_found"),
        ("provider_slug", "Acme AI", "provider_not_found"),
        ("provider_slug", "acme ", "provider_not_found"),
        ("provider_slug", "%", "provider_not_found"),
    ],
)
def test_create_refuses_an_unknown_model_or_provider(
    management: APIClient, request_body: dict[str, Any], field: str, value: str, error_type: str
) -> None:
    before = snapshots.everything()
    assert_refused(post(management, request_body | {field: value}), 404, error_type)
    assert snapshots.everything() == before


def test_create_refuses_an_unlisted_model(
    management: APIClient, request_body: dict[str, Any], model: LanguageModel
) -> None:
    model.is_listed = False
    model.save_fields("is_listed")
    assert_refused(post(management, request_body), 404, "model_not_found")
    assert PrivateEndpoint.objects.count() == 0


def test_create_refuses_an_unlisted_provider(
    management: APIClient, request_body: dict[str, Any], provider: Provider
) -> None:
    provider.is_listed = False
    provider.save_fields("is_listed")
    assert_refused(post(management, request_body), 404, "provider_not_found")
    assert PrivateEndpoint.objects.count() == 0


def test_create_refuses_more_than_the_limit_of_the_organization(
    db: None, request_body: dict[str, Any]
) -> None:
    tenant = factories.make_tenant(endpoint_limit=2)
    client = factories.client(tenant.management_key)
    first = post(client, request_body).json()["data"]["id"]
    assert post(client, request_body).status_code == 201
    before = snapshots.everything()
    error = assert_refused(post(client, request_body), 422, "endpoint_limit_reached")
    assert error["message"].startswith("endpoint_limit_reached: ")
    assert snapshots.everything() == before
    assert client.delete(f"{ROUTE}/{first}").status_code == 200
    assert post(client, request_body).status_code == 201


def test_create_refuses_more_than_the_default_limit(
    management: APIClient, request_body: dict[str, Any], settings: Any
) -> None:
    settings.PRIVATE_ENDPOINT_LIMIT = 1
    assert post(management, request_body).status_code == 201
    assert_refused(post(management, request_body), 422, "endpoint_limit_reached")
    assert PrivateEndpoint.objects.count() == 1


def test_create_without_a_price_takes_the_list_price_of_the_provider(
    management: APIClient,
    request_body: dict[str, Any],
    model: LanguageModel,
    provider: Provider,
) -> None:
    cheap = factories.make_price("0.0000001", "0.0000001")
    own = factories.make_price("0.000003", "0.000004", cache_read="0.000001")
    factories.make_endpoint(model, factories.make_provider(), price=cheap)
    factories.make_endpoint(model, provider, price=own)
    assert post(management, request_body).status_code == 201
    assert PrivateEndpoint.objects.get().price.price == own


def test_create_without_a_price_takes_the_cheapest_of_the_model(
    management: APIClient, request_body: dict[str, Any], model: LanguageModel
) -> None:
    cheap = factories.make_price("0.0000001", "0.0000001")
    factories.make_endpoint(model, factories.make_provider(), price=factories.make_price())
    factories.make_endpoint(model, factories.make_provider(), price=cheap)
    assert post(management, request_body).status_code == 201
    assert PrivateEndpoint.objects.get().price.price == cheap


def test_create_without_a_price_of_an_unpriced_model_costs_nothing(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    assert post(management, request_body).status_code == 201
    assert PrivateEndpoint.objects.get().price.price == factories.make_price("0", "0")


def test_create_with_a_price_ignores_the_list_price(
    management: APIClient,
    request_body: dict[str, Any],
    model: LanguageModel,
    provider: Provider,
) -> None:
    factories.make_endpoint(model, provider)
    body = request_body | {"pricing": {"prompt": "0", "completion": "0"}}
    assert post(management, body).status_code == 201
    stored: Price = PrivateEndpoint.objects.get().price.price
    assert stored == factories.make_price("0", "0")


LISTED = {"cache_read": "0.0000000042", "cache_write": "0.000000175"}


@pytest.mark.parametrize(
    ("listed", "sent", "derived"),
    [
        (LISTED, {}, {"cache_read": "0.0000000084", "cache_write": "0.00000035"}),
        (LISTED, {"cache_read": "0"}, {"cache_read": "0", "cache_write": "0.00000035"}),
        (LISTED, {"cache_read": "1", "cache_write": "2"}, {"cache_read": "1", "cache_write": "2"}),
        ({"cache_read": "0"}, {}, {"cache_read": "0"}),
        ({"cache_read": "0.00000028"}, {"cache_write": "3"}, {
            "cache_read": "0.00000056", "cache_write": "3"
        }),
        ({}, {}, {}),
    ],
)  # fmt: skip
def test_create_derives_omitted_cache_rates(
    management: APIClient,
    request_body: dict[str, Any],
    model: LanguageModel,
    provider: Provider,
    listed: dict[str, str],
    sent: dict[str, str],
    derived: dict[str, str],
) -> None:
    price = factories.make_price("0.00000014", "0.00000028", **listed)
    factories.make_endpoint(model, provider, price=price)
    dearer = factories.make_price("0.1", "0.1", cache_read="0.1", cache_write="0.1")
    factories.make_endpoint(model, provider, price=dearer, upstream_model_id="dearer")
    pricing = {"prompt": "0.00000028", "completion": "0.5"}
    created = post(management, request_body | {"pricing": pricing | sent}, **KEY)
    assert created.status_code == 201
    path = f"/api/v1/private-endpoints/{created.json()['data']['id']}"
    assert management.get(path).json()["data"]["pricing"] == pricing | derived
    again = post(management, request_body | {"pricing": pricing | sent}, **KEY)
    assert again.json() == created.json()
    assert PrivateEndpoint.objects.count() == 1
    reset = management.put(f"{path}/pricing", {"pricing": pricing})
    assert reset.json()["data"]["pricing"] == pricing


def test_create_derives_no_rate_from_other_providers_or_a_free_prompt(
    management: APIClient, request_body: dict[str, Any], model: LanguageModel, provider: Provider
) -> None:
    cached = factories.make_price("0.1", "0.1", cache_read="0.01")
    factories.make_endpoint(model, factories.make_provider(), price=cached)
    body = request_body | {"pricing": {"prompt": "1", "completion": "1"}}
    assert post(management, body).status_code == 201
    free = factories.make_price("0", "0", cache_read="0.01")
    factories.make_endpoint(model, provider, price=free)
    assert post(management, body).status_code == 201
    prices = [endpoint.price.price for endpoint in PrivateEndpoint.objects.all()]
    assert prices == [factories.make_price("1", "1")] * 2


def test_a_derived_rate_is_rounded_to_30_decimals(
    management: APIClient, request_body: dict[str, Any], model: LanguageModel, provider: Provider
) -> None:
    listed = factories.make_price("0.000003", "1", cache_read="0.000001")
    factories.make_endpoint(model, provider, price=listed)
    pricing = {"prompt": "0.1", "completion": "1"}
    assert post(management, request_body | {"pricing": pricing}).status_code == 201
    assert PrivateEndpoint.objects.get().price.cache_read == Decimal("0." + "0" + "3" * 29)


def test_a_derived_rate_above_the_maximum_is_refused(
    management: APIClient, request_body: dict[str, Any], model: LanguageModel, provider: Provider
) -> None:
    listed = factories.make_price("1", "1", cache_write="1.25")
    factories.make_endpoint(model, provider, price=listed)
    before = snapshots.everything()
    body = request_body | {"pricing": {"prompt": "800000", "completion": "1"}}
    assert_refused(post(management, body), 422, "unprocessable")
    assert snapshots.everything() == before
    body["pricing"]["prompt"] = "799999"
    assert post(management, body).status_code == 201
    assert PrivateEndpoint.objects.get().price.cache_write == Decimal("999998.75")


KEY = {"Idempotency-Key": "order-1"}


def test_a_repeated_key_returns_the_first_endpoint(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    first = post(management, request_body, **KEY)
    before = snapshots.everything()
    again = post(management, request_body, **KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert snapshots.everything() == before


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
    ],
)
def test_a_key_reused_for_another_body_is_refused(
    management: APIClient, request_body: dict[str, Any], change: dict[str, Any]
) -> None:
    factories.make_model("acme/other")
    factories.make_provider("other")
    assert post(management, request_body, **KEY).status_code == 201
    before = snapshots.everything()
    error = assert_refused(
        post(management, request_body | change, **KEY), 422, "idempotency_key_reused"
    )
    assert error["message"].startswith("idempotency_key_reused: ")
    assert snapshots.everything() == before


@pytest.mark.parametrize(
    "change",
    [
        {"declared_region": None, "declared_zdr": None},
        {"base_url": "HTTPS://llm.example.com:443/v1/"},
        {"activate": {"workspace_id": "00000000-0000-4000-8000-000000000000"}},
    ],
)
def test_a_repeated_key_ignores_equivalent_values_and_activate(
    management: APIClient, request_body: dict[str, Any], change: dict[str, Any]
) -> None:
    first = post(management, request_body, **KEY)
    before = snapshots.everything()
    again = post(management, request_body | change, **KEY)
    assert again.status_code == 201
    assert again.json() == first.json()
    assert snapshots.everything() == before


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
    before = snapshots.everything()
    error = assert_refused(
        post(management, request_body, **{"Idempotency-Key": key}), 400, "invalid_request"
    )
    assert error["message"].startswith("Idempotency-Key: ")
    assert snapshots.everything() == before


def test_the_key_of_a_deleted_endpoint_stays_reserved(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    first = post(management, request_body, **KEY).json()["data"]["id"]
    assert management.delete(f"{ROUTE}/{first}").status_code == 200
    before = snapshots.everything()
    assert_refused(post(management, request_body, **KEY), 404, "not_found")
    other = request_body | {"upstream_model_id": "other"}
    assert_refused(post(management, other, **KEY), 422, "idempotency_key_reused")
    assert snapshots.everything() == before


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


def test_create_refuses_an_inference_key(
    inference: APIClient, request_body: dict[str, Any]
) -> None:
    before = snapshots.everything()
    assert_refused(post(inference, request_body), 403, "permission_denied")
    assert snapshots.everything() == before
