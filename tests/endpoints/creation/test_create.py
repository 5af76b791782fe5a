"""``POST /private-endpoints`` without ``activate``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.models import ApiKey
from catalog.models import LanguageModel, Provider
from config.changes.kinds import ChangeKind
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import KEY, ROUTE, assert_refused, managed_view, post
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import demand
from tests.support.simulator.server import Simulator

ABSENT = object()


def test_create_returns_the_managed_view_of_a_draft(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    response = post(management, request_body)
    assert response.status_code == 201
    assert list(response.json()) == ["data"]
    assert response.json()["data"] == managed_view(PrivateEndpoint.objects.get())


def test_create_stores_every_field(
    management: APIClient, tenant: Tenant, request_body: dict[str, Any]
) -> None:
    fields = {
        "declared_region": "europe",
        "declared_zdr": True,
        "pricing": {"prompt": "0.0000005", "completion": "0.00000150", "cache_read": "0"},
    }
    response = post(management, request_body | fields)
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


@pytest.mark.parametrize("name", ["pricing", "lines", "activate", "settings", "timeouts"])
def test_create_counts_null_as_absent(
    management: APIClient, request_body: dict[str, Any], name: str
) -> None:
    first = post(management, request_body, **KEY)
    assert first.status_code == 201
    again = post(management, request_body | {name: None}, **KEY)
    assert (again.status_code, again.json()) == (201, first.json())


def test_a_price_that_is_null_needs_no_second_person(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    ApiKey.objects.update(issued_by_operator=True)
    demand(ChangeKind.PRICES)
    created = post(management, request_body | {"pricing": None})
    assert created.status_code == 201
    priced = {"pricing": {"prompt": "1", "completion": "1"}}
    assert post(management, request_body | priced).status_code == 403
    path = f"{ROUTE}/{created.json()['data']['id']}"
    assert management.patch(path, priced).status_code == 403
    assert management.patch(path, {"pricing": None}).status_code == 200


@pytest.mark.parametrize("body", [{"pricing": None}, {"lines": None, "timeouts": None}])
def test_a_patch_counts_null_as_absent(
    management: APIClient, request_body: dict[str, Any], body: dict[str, Any]
) -> None:
    path = f"{ROUTE}/{post(management, request_body).json()['data']['id']}"
    before = management.get(path).json()
    patched = management.patch(path, body)
    assert (patched.status_code, patched.json()) == (200, before)


def test_create_takes_lines_beside_the_price(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    line = {"billable": "image", "unit": "image", "variant": "1024x1024/high", "price": "0.167"}
    body = request_body | {"pricing": {"prompt": "1", "completion": "1"}, "lines": [line]}
    created = post(management, body)
    assert created.status_code == 201, created.content
    path = f"{ROUTE}/{created.json()['data']['id']}"
    assert management.get(path).json()["data"]["lines"] == [line]
    body = {"pricing": {"prompt": "2", "completion": "2"}, "lines": [line | {"price": "0.2"}]}
    assert management.patch(path, body).json()["data"]["lines"] == body["lines"]


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
        for value in (ABSENT, *STRINGS, " ", "\u3000 ", "\u200b", "\ufeff \u2060", "a" * 256)
    ),
    *(
        ("base_url", value, "base_url")
        for value in (5, 1.5, True, [], {}, ["x"], "", "https://example.com/" + "a" * 2029)
    ),
    *(
        ("declared_region", value, "declared_region")
        for value in ("", "eu", "Europe", "us ", "asia", 1, True, [], {}, ["us"])
    ),
    *(
        ("declared_zdr", value, "declared_zdr")
        for value in ("true", "yes", "", "null", 0, 1, 1.0, [], {})
    ),
    *(("pricing", value, "pricing") for value in ("0.1", 1, True, [])),
    ("pricing", {}, "pricing.prompt"),
    ("pricing", {"prompt": "1"}, "pricing.completion"),
    ("pricing", {"completion": "1"}, "pricing.prompt"),
    ("pricing", {"prompt": "1", "completion": "1", "images": "1"}, "pricing.images"),
    ("pricing", {"prompt": "1", "completion": "1", "image": 1}, "pricing.image"),
    ("pricing", {"prompt": "1", "completion": "1", "discount": 2}, "pricing.discount"),
    ("pricing", {"prompt": "1", "completion": "1", "overrides": [{"prompt": "2"}]},
     "pricing.overrides[0]"),
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
    *(("activate", value, "activate") for value in ("yes", True, 1, [])),
    ("activate", {}, "activate.workspace_id"),
    *(("activate", {"workspace_id": value}, "activate.workspace_id") for value in UUIDS),
    ("activate", {"workspace_id": "00000000-0000-4000-8000-000000000000", "force": True},
     "activate.force"),
    *(
        (name, "x", name)
        for name in ("status", "id", "organization_id", "Base_url", "idempotency_key")
    ),
]  # fmt: skip


def state(body: dict[str, Any], field: str, value: Any) -> None:
    """Gives a field of a request a value, or takes the field away."""
    if value is ABSENT:
        del body[field]
    else:
        body[field] = value


@pytest.mark.parametrize(("field", "value", "named"), MALFORMED)
def test_create_names_a_malformed_field(
    management: APIClient, request_body: dict[str, Any], field: str, value: Any, named: str
) -> None:
    state(request_body, field, value)
    with snapshots.unchanged():
        error = assert_refused(post(management, request_body), 400, "invalid_request")
        assert named in error["metadata"]["fields"]
        assert {name.partition(".")[0] for name in error["metadata"]["fields"]} == {field}


@pytest.mark.parametrize("name", ["", "\x00", "\x85", "\ud800"])
def test_create_refuses_an_unprintable_field_name(
    management: APIClient, request_body: dict[str, Any], name: str
) -> None:
    with snapshots.unchanged():
        assert_refused(post(management, request_body | {name: 1}), 400, "invalid_request")


def test_create_names_every_malformed_field(management: APIClient) -> None:
    error = assert_refused(post(management, {"declared_zdr": "no"}), 400, "invalid_request")
    assert error["message"] == (
        "model_permaslug, provider_slug, upstream_model_id: These fields are required. (and 1 more)"
    )
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
        ABSENT, None, *STRINGS[8:], " ", "\u3000", "x", "not a url",
        "//example.com/v1", "example.com/v1", "https://",
        "https:///v1", "http://llm.example.com/v1", "ftp://llm.example.com/v1",
        "file:///etc/passwd", "javascript:alert(1)", "https://user:password@llm.example.com/v1",
        "https://user@llm.example.com/v1", "https://llm.example.com/v1?key=x",
        "https://llm.example.com/v1#fragment", "https://llm.example.com\\@evil.example/v1",
        "https://llm.example.com/../admin", "https://llm.example.com/a//b",
        "https://llm.example.com/%2e%2e/admin", "https://llm.example.com/%00",
        "https://llm.example.com:0/v1", "https://llm.example.com:65536/v1",
        "https://llm.example.com:/v1", "https://llm.example.com:22/v1",
        "https://llm.example.com:80/v1", "https://llm.example.com:5432/v1",
        "https://llm.example.com:6379/v1", "https://exämple.com/v1", "https://１２７.0.0.1/v1",
        "https://127.1/v1", "https://2130706433/v1", "https://0x7f000001/v1",
        "https://017700000001/v1", "https://127.0.0.1/v1", "https://10.0.0.1/v1",
        "https://172.16.0.1/v1", "https://192.168.1.1/v1", "https://100.64.0.1/v1",
        "https://0.0.0.0/v1", "https://255.255.255.255/v1", "https://224.0.0.1/v1",
        "https://169.254.169.254/latest/meta-data", "https://168.63.129.16/v1",
        "https://192.0.0.192/v1", "https://[::]/v1", "https://[::1]/v1",
        "https://[::ffff:127.0.0.1]/v1", "https://[::ffff:169.254.169.254]/v1",
        "https://[64:ff9b::7f00:1]/v1", "https://[2002:7f00:1::]/v1", "https://[fd00:ec2::254]/v1",
        "https://[fe80::1]/v1", "https://[fe80::1%25eth0]/v1", "https://[ff02::1]/v1",
    ],
)  # fmt: skip
def test_create_refuses_a_forbidden_base_url(
    management: APIClient, request_body: dict[str, Any], settings: Any, base_url: Any
) -> None:
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, allowed_networks=())
    state(request_body, "base_url", base_url)
    with snapshots.unchanged():
        error = assert_refused(post(management, request_body), 422, "invalid_base_url")
        assert error["message"].startswith("invalid_base_url: ")


def test_create_opens_no_connection(
    management: APIClient, request_body: dict[str, Any], upstream: Simulator, settings: Any
) -> None:
    assert post(management, request_body | {"base_url": upstream.base_url}).status_code == 201
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, allowed_networks=())
    response = post(management, request_body | {"base_url": upstream.base_url})
    assert_refused(response, 422, "invalid_base_url")
    assert upstream.connections == 0


def test_create_requires_https_in_an_allowed_network(
    management: APIClient, request_body: dict[str, Any]
) -> None:
    with snapshots.unchanged():
        response = post(management, request_body | {"base_url": "http://127.0.0.1:8080/v1"})
        assert_refused(response, 422, "invalid_base_url")


@pytest.mark.parametrize("base_url", [ABSENT, None])
def test_create_needs_no_base_url_if_the_credential_contains_it(
    management: APIClient, request_body: dict[str, Any], cloud: Provider, base_url: Any
) -> None:
    state(request_body, "base_url", base_url)
    response = post(management, request_body | {"provider_slug": cloud.slug})
    assert response.status_code == 201
    full = management.get(f"{ROUTE}/{response.json()['data']['id']}").json()["data"]
    assert full["base_url"] is None


def test_create_refuses_a_base_url_if_the_credential_contains_it(
    management: APIClient, request_body: dict[str, Any], cloud: Provider
) -> None:
    with snapshots.unchanged():
        response = post(management, request_body | {"provider_slug": cloud.slug})
        error = assert_refused(response, 422, "invalid_base_url")
        assert error["message"] == (
            "invalid_base_url: Azure takes its URL from the credential; leave base_url out."
        )


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
    with snapshots.unchanged():
        assert_refused(post(management, request_body | {field: value}), 404, error_type)


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_slug_in_place_of_a_permanent_one_is_answered_with_that_of_a_listed_model(
    management: APIClient, request_body: dict[str, Any], model: LanguageModel, is_listed: bool
) -> None:
    model.is_listed = is_listed
    model.save_fields("is_listed")
    answer = post(management, request_body | {"model_permaslug": "acme/falcon"})
    assert assert_refused(answer, 404, "model_not_found")["message"] == (
        "model_permaslug: The permanent slug of 'acme/falcon' is 'acme/falcon-2026-01-01'."
        if is_listed
        else "There is no model 'acme/falcon' in the catalogue."
    )


@pytest.mark.parametrize("name", ["model", "provider"])
def test_create_refuses_an_unlisted_model_or_provider(
    management: APIClient,
    request_body: dict[str, Any],
    model: LanguageModel,
    provider: Provider,
    name: str,
) -> None:
    {"model": model, "provider": provider}[name].delist()
    assert_refused(post(management, request_body), 404, f"{name}_not_found")
    assert PrivateEndpoint.objects.count() == 0


def test_create_refuses_more_than_the_limit_of_the_organization(
    db: None, request_body: dict[str, Any]
) -> None:
    tenant = factories.make_tenant(endpoint_limit=2)
    client = factories.client(tenant.management_key)
    first = post(client, request_body).json()["data"]["id"]
    assert post(client, request_body).status_code == 201
    with snapshots.unchanged():
        error = assert_refused(post(client, request_body), 422, "endpoint_limit_reached")
        assert error["message"].startswith("endpoint_limit_reached: ")
    assert client.delete(f"{ROUTE}/{first}").status_code == 200
    assert post(client, request_body).status_code == 201


def test_create_refuses_more_than_the_default_limit(
    management: APIClient, request_body: dict[str, Any], settings: Any
) -> None:
    settings.PRIVATE_ENDPOINT_LIMIT = 1
    assert post(management, request_body).status_code == 201
    assert_refused(post(management, request_body), 422, "endpoint_limit_reached")
    assert PrivateEndpoint.objects.count() == 1


def test_create_refuses_an_inference_key(
    inference: APIClient, request_body: dict[str, Any]
) -> None:
    with snapshots.unchanged():
        assert_refused(post(inference, request_body), 403, "permission_denied")
