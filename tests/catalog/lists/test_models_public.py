"""Tests ``GET /models``: the public catalogue with its filters, order and pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from rest_framework.test import APIClient

from accounts.models import ApiKey
from catalog.models import ModelEndpoint
from catalog.serializers import ModelSerializer
from config.secrets import generate_api_key
from tests.support import factories
from tests.support.catalogue import (
    EMBEDDINGS,
    FALCON,
    HAWK,
    OWL,
    ROUTE,
    USER_ROUTE,
    WREN,
    ids,
    publish,
    publish_privately,
    spend,
)
from tests.support.endpoints.creating import assert_refused
from tests.support.factories import Tenant

PUBLIC_ROUTES = (
    ROUTE,
    "/api/v1/models/count",
    "/api/v1/model/acme/falcon",
    "/api/v1/models/acme/falcon/endpoints",
    EMBEDDINGS,
    "/api/v1/endpoints/zdr",
    "/api/v1/providers",
)


@pytest.mark.parametrize("route", PUBLIC_ROUTES)
def test_public_routes_return_the_same_reply_with_and_without_a_key(
    anonymous: APIClient, management: APIClient, inference: APIClient, route: str
) -> None:
    publish("acme/falcon")
    answers = [client.get(route) for client in (anonymous, management, inference)]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert answers[0].json() == answers[1].json() == answers[2].json()


@pytest.mark.parametrize("route", PUBLIC_ROUTES)
@pytest.mark.parametrize("header", ["", "Bearer", "Bearer garbage", "Basic eA==", "unknown", "off"])
def test_public_routes_refuse_an_invalid_key(tenant: Tenant, route: str, header: str) -> None:
    publish("acme/falcon")
    if header == "unknown":
        header = f"Bearer {generate_api_key(is_management=False).reveal()}"
    if header == "off":
        ApiKey.objects.update(disabled=True)
        header = f"Bearer {tenant.api_key}"
    response = APIClient().get(route, HTTP_AUTHORIZATION=header)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.json()["error"]["metadata"] == {"error_type": "authentication"}


def test_public_list_equals_the_user_list_without_a_policy(
    anonymous: APIClient, management: APIClient
) -> None:
    publish("acme/falcon", supported_parameters=["tools"])
    assert anonymous.get(ROUTE).json() == management.get(USER_ROUTE).json()


def test_public_lists_leave_out_private_endpoints(inference: APIClient, tenant: Tenant) -> None:
    private = publish_privately(tenant, "acme/own", output_modalities=["text", "embeddings"])
    assert ids(inference) == ids(inference, route=EMBEDDINGS) == []
    assert inference.get(f"{ROUTE}/count").json() == {"data": {"count": 0}}
    assert inference.get("/api/v1/model/acme/own").status_code == 404
    assert inference.get(f"{ROUTE}/acme/own/endpoints").json()["data"]["endpoints"] == []
    assert inference.get("/api/v1/endpoints/zdr").json() == {"data": []}
    public = factories.make_endpoint(private.model, factories.make_provider(), zdr=True)
    assert ids(inference) == ["acme/own"]
    (shown,) = inference.get(f"{ROUTE}/acme/own/endpoints").json()["data"]["endpoints"]
    assert shown["tag"] == public.provider.slug


def test_public_lists_leave_out_unlisted_rows(anonymous: APIClient) -> None:
    for name in ("model", "provider", "endpoint"):
        endpoint = publish(f"acme/{name}", endpoint_zdr=True)
        row = {"model": endpoint.model, "provider": endpoint.provider, "endpoint": endpoint}[name]
        factories.change(row, is_listed=False)
    assert ids(anonymous) == []
    assert anonymous.get("/api/v1/endpoints/zdr").json() == {"data": []}
    assert len(anonymous.get("/api/v1/providers").json()["data"]) == 2
    assert anonymous.get(f"{ROUTE}/acme/model/endpoints").status_code == 404
    for name in ("provider", "endpoint"):
        assert anonymous.get(f"{ROUTE}/acme/{name}/endpoints").json()["data"]["endpoints"] == []
        assert anonymous.get(f"/api/v1/model/acme/{name}").status_code == 404


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [FALCON, HAWK, OWL]),
        ("unknown=1", [FALCON, HAWK, OWL]),
        ("output_modalities=all", [FALCON, HAWK, OWL, WREN]),
        ("output_modalities=embeddings", [WREN]),
        ("q=falcon", [FALCON]),
        ("q=ACME", [FALCON, HAWK]),
        ("q=Hawk", [HAWK]),
        ("q=", [FALCON, HAWK, OWL]),
        ("q=%25", [FALCON]),
        ("q=_", [OWL]),
        ("q=%5C", []),
        ("q=eagle", []),
        ("supported_parameters=tools", [FALCON, HAWK]),
        ("supported_parameters=tools,seed", [FALCON]),
        ("supported_parameters=Tools", []),
        ("input_modalities=text", [FALCON, HAWK, OWL]),
        ("input_modalities=image,text", [FALCON]),
        ("input_modalities=audio", [OWL]),
        ("input_modalities=image,audio", []),
        ("input_modalities=text&output_modalities=embeddings", [WREN]),
        ("input_modalities=image&output_modalities=embeddings", []),
        ("context=131072", [FALCON, HAWK]),
        ("context=131073", [FALCON]),
        ("context=0", [FALCON, HAWK]),
        ("context=999999999999999999", []),
        ("min_price=0.5", [FALCON, HAWK]),
        ("min_price=0.500001", [FALCON]),
        ("max_price=0.5", [HAWK, OWL]),
        ("max_price=0", [OWL]),
        ("max_price=0.0", [OWL]),
        ("max_price=3e0&min_price=5e-01", [FALCON, HAWK]),
        ("min_price=3.0000000000000000000000000001", []),
        ("min_price=4&max_price=3", []),
        ("min_output_price=1.5&max_output_price=15", [FALCON, HAWK]),
        ("min_output_price=1.6", [FALCON]),
        ("max_output_price=1.5", [HAWK, OWL]),
        ("arch=Llama", [HAWK, OWL]),
        ("arch=llama4", [OWL]),
        ("arch=claude", [FALCON]),
        ("arch=GPT", []),
        ("arch=%25", []),
        ("model_authors=acme", [FALCON, HAWK]),
        ("model_authors=birds,acme", [FALCON, HAWK, OWL]),
        ("model_authors=Birds", [OWL]),
        ("model_authors=ac", []),
        ("model_authors=%25", []),
        ("providers=north", [FALCON, HAWK]),
        ("providers=North%20Star", [FALCON, HAWK]),
        ("providers=nowhere,NORTH", [FALCON, HAWK]),
        ("providers=nowhere", []),
        ("zdr=true", [HAWK]),
        ("region=eu", [FALCON, HAWK]),
        ("region=us", [HAWK, OWL]),
        ("region=us&zdr=true", [HAWK]),
        # One endpoint must satisfy all conditions: Hawk's endpoint at North is in Europe, but it
        # keeps data.
        ("region=eu&zdr=true", []),
        ("region=us&providers=north", []),
        ("min_age_days=0", [FALCON, HAWK, OWL]),
        ("min_age_days=10", [HAWK, OWL]),
        ("min_age_days=11", [OWL]),
        ("max_age_days=10", [FALCON]),
        ("max_age_days=11", [FALCON, HAWK]),
        ("min_age_days=1&max_age_days=100", [HAWK]),
        ("max_age_days=100000", [FALCON, HAWK, OWL]),
        # A filter on a fact that the catalogue does not record matches no model.
        ("category=programming", []),
        ("category=marketing/seo", []),
        ("distillable=true", []),
        ("distillable=false", []),
        ("min_intelligence_index=0", []),
        ("max_coding_index=100", []),
        ("min_agentic_index=1.5", []),
        ("max_tool_success_rate=1", []),
        ("model_authors=acme&arch=llama&zdr=true&max_price=1&q=h", [HAWK]),
    ],
)
def test_filter_selects_models(
    anonymous: APIClient, catalogue: None, query: str, expected: list[str]
) -> None:
    assert ids(anonymous, f"?{query}") == expected


def test_filter_does_not_change_the_fields_of_a_model(
    anonymous: APIClient, catalogue: None
) -> None:
    rows = {row["id"]: row for row in anonymous.get(ROUTE).json()["data"]}
    (hawk,) = anonymous.get(f"{ROUTE}?providers=north&min_age_days=5").json()["data"]
    assert hawk == rows[HAWK]
    assert hawk["pricing"]["prompt"] == "0.0000005"


_BAD_NUMBERS = ("", "x", "-1", "1,5", ".5", "1.", "NaN", "Infinity", "%2B1", "1%0a", "%D9%A3")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        *(
            (f"{name}={value}", name)
            for name in ("min_price", "max_output_price", "min_coding_index")
            for value in (*_BAD_NUMBERS, "1e16", "1e999", "1" * 19, "0x1", "1_0", "true")
        ),
        *(
            (f"{name}={value}", name)
            for name in ("context", "min_age_days", "max_age_days", "limit", "offset")
            for value in (*_BAD_NUMBERS, "1.5", "1e2", "1" * 19)
            # An empty offset counts as absent.
            if (name, value) != ("offset", "")
        ),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("min_age_days=100001", "min_age_days"),
        ("max_tool_success_rate=1.01", "max_tool_success_rate"),
        ("min_tool_success_rate=2", "min_tool_success_rate"),
        *((f"sort={value}", "sort") for value in ("", "Newest", "price", "newest%00")),
        *((f"category={value}", "category") for value in ("", "cooking", "marketing/")),
        *((f"distillable={value}", "distillable") for value in ("", "yes", "True")),
        *((f"zdr={value}", "zdr") for value in ("", "false", "1")),
        *((f"region={value}", "region") for value in ("", "europe", "EU", "eu,us")),
        *((f"output_modalities={value}", "output_modalities") for value in ("", "file", "text,")),
        *((f"input_modalities={value}", "input_modalities") for value in ("", "rerank", "text,,")),
        ("q=%00", "q"),
        ("q=a%1f", "q"),
        ("arch=", "arch"),
        ("arch=%7f", "arch"),
        *(
            (f"{name}={value}", name)
            for name in ("supported_parameters", "model_authors", "providers")
            for value in ("", ",", "a,", "a%00", ",".join("a" * 101))
        ),
    ],
)
def test_malformed_query_returns_400(anonymous: APIClient, query: str, field: str) -> None:
    error = assert_refused(anonymous.get(f"{ROUTE}?{query}"), 400, "invalid_request")
    assert set(error["metadata"]["fields"]) == {field}


@pytest.mark.parametrize(
    ("route", "query"),
    [(f"{ROUTE}/count", "output_modalities=x"), (EMBEDDINGS, "limit=0"), (EMBEDDINGS, "offset=-1")],
)
def test_malformed_query_of_the_other_routes_returns_400(
    anonymous: APIClient, route: str, query: str
) -> None:
    assert anonymous.get(f"{route}?{query}").status_code == 400


@pytest.mark.parametrize("route", [ROUTE, USER_ROUTE])
@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (None, ["a/new", "a/mid", "a/old", "a/odd"]),
        ("newest", ["a/new", "a/mid", "a/old", "a/odd"]),
        # The means of the two prices are: new 2, mid 3, old 1, odd 3. Equal models are sorted
        # newest first.
        ("pricing-low-to-high", ["a/old", "a/new", "a/mid", "a/odd"]),
        ("pricing-high-to-low", ["a/mid", "a/odd", "a/new", "a/old"]),
        ("context-high-to-low", ["a/old", "a/new", "a/mid", "a/odd"]),
        ("most-popular", ["a/mid", "a/old", "a/new", "a/odd"]),
        ("top-weekly", ["a/mid", "a/old", "a/new", "a/odd"]),
        ("throughput-high-to-low", ["a/old", "a/mid", "a/new", "a/odd"]),
        ("latency-low-to-high", ["a/mid", "a/old", "a/new", "a/odd"]),
        ("intelligence-high-to-low", ["a/new", "a/mid", "a/old", "a/odd"]),
        ("coding-high-to-low", ["a/new", "a/mid", "a/old", "a/odd"]),
        ("agentic-high-to-low", ["a/new", "a/mid", "a/old", "a/odd"]),
        ("design-arena-elo-high-to-low", ["a/new", "a/mid", "a/old", "a/odd"]),
    ],
)
def test_sort_orders_models(
    management: APIClient, tenant: Tenant, route: str, sort: str | None, expected: list[str]
) -> None:
    now = timezone.now()
    publish("a/odd", "4", "2", created=10, context_length=None)
    old = publish("a/old", "1", "1", created=20, context_length=9000)
    mid = publish("a/mid", "1", "5", created=30, context_length=1000)
    new = publish("a/new", "3", "1", created=40, context_length=8000)
    # The fastest endpoint gives the speed of its model.
    slow = factories.make_endpoint(old.model, old.provider, upstream_model_id="slow")
    spend(tenant, slow, latency_ms=900, duration_ms=2000)
    spend(tenant, old, latency_ms=300, duration_ms=500)
    for _ in range(3):
        spend(tenant, mid, latency_ms=100, duration_ms=800)
    # Tokens of eight days ago never count; tokens of six days ago count only for the week.
    spend(tenant, new, prompt_tokens=10**9, created_at=now - timedelta(days=8))
    spend(tenant, new, prompt_tokens=1, latency_ms=1, created_at=now - timedelta(days=6))
    assert ids(management, "" if sort is None else f"?sort={sort}", route) == expected


def test_sort_ignores_the_traffic_of_private_endpoints(
    anonymous: APIClient, tenant: Tenant
) -> None:
    private = publish_privately(tenant, "a/old", created=1)
    factories.make_endpoint(private.model, factories.make_provider())
    publish("a/new", created=2)
    factories.make_generation(
        tenant,
        private_endpoint=private,
        streamed=True,
        prompt_tokens=100,
        completion_tokens=100,
        latency_ms=1,
        duration_ms=2,
        attempts=[{"endpoint_id": str(private.pk), "latency_ms": 1, "status": 200}],
    )
    for sort in ("top-weekly", "latency-low-to-high", "throughput-high-to-low"):
        assert ids(anonymous, f"?sort={sort}") == ["a/new", "a/old"]


@pytest.mark.parametrize("limit", [1, 3, 10, 11])
@pytest.mark.parametrize(
    ("route", "query"),
    [
        (ROUTE, "sort=pricing-low-to-high"),
        (ROUTE, "sort=top-weekly&output_modalities=embeddings"),
        (ROUTE, "q=model&max_price=1"),
        (EMBEDDINGS, "unknown=1"),
        (USER_ROUTE, "sort=context-high-to-low"),
        (USER_ROUTE, "unknown=1"),
    ],
)
def test_next_links_visit_each_model_once(
    management: APIClient, limit: int, route: str, query: str
) -> None:
    # All models have the same price and time, so the slug alone decides the order.
    provider = factories.make_provider()
    slugs = [f"acme/model-{number:02}b" for number in range(11)]
    for slug in slugs:
        publish(slug, endpoint_provider=provider, output_modalities=["text", "embeddings"])
    publish("other/hidden", "5", "5", output_modalities=["image"])
    seen: list[str] = []
    address: str | None = f"http://testserver{route}?{query}&limit={limit}"
    while address is not None:
        answer = management.get(address).json()
        assert answer["total_count"] == 11
        seen += [row["id"] for row in answer["data"]]
        address = answer["links"]["next"]
    assert seen == slugs


def test_page_has_the_total_and_the_next_link(anonymous: APIClient) -> None:
    for number in range(3):
        publish(f"acme/model-{number}b")
    answer = anonymous.get(f"{ROUTE}?offset=1&limit=1&q=acme").json()
    assert [row["id"] for row in answer["data"]] == ["acme/model-1b"]
    assert answer["total_count"] == 3
    assert answer["links"] == {"next": "http://testserver/api/v1/models?offset=2&limit=1&q=acme"}


@pytest.mark.parametrize(
    ("query", "expected"),
    [("", 3), ("?output_modalities=embeddings", 1), ("?output_modalities=all", 4), ("?q=owl", 3)],
)
def test_count_returns_the_number_of_models(
    anonymous: APIClient, catalogue: None, query: str, expected: int
) -> None:
    assert anonymous.get(f"{ROUTE}/count{query}").json() == {"data": {"count": expected}}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (ROUTE, 4),
        (f"{ROUTE}?limit=100", 4),
        (f"{ROUTE}?sort=latency-low-to-high&zdr=true", 6),
        (f"{ROUTE}?sort=top-weekly&q=a&min_price=0", 8),
        (f"{ROUTE}/count", 4),
        ("/api/v1/model/acme/falcon", 4),
        (f"{ROUTE}/acme/falcon/endpoints", 8),
        (EMBEDDINGS, 4),
        ("/api/v1/endpoints/zdr", 4),
        ("/api/v1/providers", 2),
        (f"{USER_ROUTE}?sort=throughput-high-to-low", 8),
    ],
)
def test_lists_run_a_constant_number_of_queries(
    management: APIClient,
    anonymous: APIClient,
    tenant: Tenant,
    falcon: ModelEndpoint,
    route: str,
    expected: int,
) -> None:
    def queries() -> int:
        cache.clear()
        # The first request after a change loads the catalogue into the shared copy.
        anonymous.get(ROUTE)
        with CaptureQueriesContext(connection) as captured:
            assert management.get(route).status_code == 200
        return len(captured)

    publish("acme/first", output_modalities=["text", "embeddings"])
    spend(tenant, falcon)
    few = queries()
    for number in range(5):
        publish(
            f"acme/model-{number}b", output_modalities=["text", "embeddings"], endpoint_zdr=True
        )
        endpoint = factories.make_endpoint(falcon.model, factories.make_provider(), zdr=True)
        spend(tenant, endpoint)
    assert (few, queries()) == (expected, expected)


@pytest.mark.django_db(transaction=True)
def test_list_without_a_key_runs_one_query(anonymous: APIClient, falcon: ModelEndpoint) -> None:
    assert ids(anonymous) == ["acme/falcon"]
    with CaptureQueriesContext(connection) as captured:
        assert ids(anonymous) == ["acme/falcon"]
    assert [query["sql"].count("catalog_catalogversion") > 0 for query in captured] == [True]


def _filter(tenant: Tenant, **fields: Any) -> None:
    """Limits the public list to models that the organization's keys may use."""
    organization = tenant.organization
    factories.change(organization, is_filtered_model_catalog_enabled=True, **fields)


def test_filtered_catalogue_shows_the_models_that_the_key_may_use(
    anonymous: APIClient, management: APIClient, inference: APIClient, tenant: Tenant
) -> None:
    publish("acme/allowed", created=30)
    gone = publish("acme/forbidden", created=20)
    publish_privately(tenant, "acme/own", created=10)
    every, usable = ["acme/allowed", "acme/forbidden"], ["acme/allowed", "acme/own"]
    factories.change(tenant.organization, ignored_providers=[gone.provider.slug])
    # Without the setting, the policy filters only /models/user.
    assert ids(management) == ids(inference) == every
    assert ids(management, route=USER_ROUTE) == usable
    _filter(tenant)
    assert ids(management) == ids(inference) == usable
    assert management.get(ROUTE).json() == management.get(USER_ROUTE).json()
    stranger = factories.client(factories.make_tenant("Other").api_key)
    assert ids(anonymous) == ids(stranger) == every


def test_filtered_catalogue_supports_filters_sort_and_pages(
    inference: APIClient, tenant: Tenant
) -> None:
    publish("acme/a", "0.000001", created=30, endpoint_region="europe")
    publish("acme/b", "0.000003", created=20, endpoint_region="europe")
    own = publish_privately(tenant, "acme/c", created=10)
    factories.change(own, declared_region="europe", declared_zdr=True)
    _filter(tenant)
    assert ids(inference, "?region=eu") == ["acme/a", "acme/b", "acme/c"]
    assert ids(inference, "?region=us") == []
    assert ids(inference, "?zdr=true") == ["acme/c"]
    assert ids(inference, "?q=b") == ["acme/b"]
    assert ids(inference, f"?providers={own.provider.slug}") == ["acme/c"]
    assert ids(inference, "?sort=pricing-high-to-low") == ["acme/b", "acme/a", "acme/c"]
    page = inference.get(f"{ROUTE}?limit=1&offset=2").json()
    assert ([row["id"] for row in page["data"]], page["total_count"]) == (["acme/c"], 3)


def test_filtered_catalogue_limits_only_the_list_of_models_and_its_count(
    inference: APIClient, tenant: Tenant
) -> None:
    endpoint = publish("acme/falcon", output_modalities=["text", "embeddings"], endpoint_zdr=True)
    _filter(tenant, ignored_providers=[endpoint.provider.slug])
    assert ids(inference) == []
    assert inference.get(f"{ROUTE}/count").json() == {"data": {"count": 0}}
    assert ids(inference, route=EMBEDDINGS) == ["acme/falcon"]
    assert inference.get("/api/v1/model/acme/falcon").status_code == 200
    assert len(inference.get(f"{ROUTE}/acme/falcon/endpoints").json()["data"]["endpoints"]) == 1
    assert len(inference.get("/api/v1/endpoints/zdr").json()["data"]) == 1


def test_model_has_exactly_the_documented_fields(anonymous: APIClient) -> None:
    publish("acme/falcon")
    (row,) = anonymous.get(ROUTE).json()["data"]
    # Only a price with rules of its own has lines, and only an alias has a target.
    assert set(row) == set(ModelSerializer().fields) - {"lines", "alias_target"}
    assert set(row["architecture"]) == set(ModelSerializer().fields["architecture"].fields)
    assert set(row["top_provider"]) == set(ModelSerializer().fields["top_provider"].fields)


def test_prices_are_compared_exactly(anonymous: APIClient) -> None:
    # The prices differ in the 30th decimal place; a float or a 28-digit decimal makes them equal.
    low, high = "0.123456789012345678901234567890", "0.123456789012345678901234567891"
    publish("acme/high", high, "0", created=2)
    publish("acme/low", low, "0", created=1)
    assert ids(anonymous, "?sort=pricing-low-to-high") == ["acme/low", "acme/high"]
    assert ids(anonymous, "?sort=pricing-high-to-low") == ["acme/high", "acme/low"]
    # The filters are in USD per million tokens.
    assert ids(anonymous, "?min_price=123456.789012345678901234567891") == ["acme/high"]
    assert ids(anonymous, "?max_price=123456.789012345678901234567890") == ["acme/low"]
