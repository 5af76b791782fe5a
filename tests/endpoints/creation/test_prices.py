"""The price of a created endpoint: sent, listed or derived."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from rest_framework.test import APIClient

from catalog.models import LanguageModel, Provider
from catalog.pricing import Price
from endpoints.models import PrivateEndpoint
from tests.support import factories
from tests.support.database import snapshots
from tests.support.endpoints.creating import KEY, assert_refused, post


def test_create_without_a_price_takes_the_list_price_of_the_provider(
    management: APIClient, request_body: dict[str, Any], model: LanguageModel, provider: Provider
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
    management: APIClient, request_body: dict[str, Any], model: LanguageModel, provider: Provider
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
    with snapshots.unchanged():
        body = request_body | {"pricing": {"prompt": "800000", "completion": "1"}}
        assert_refused(post(management, body), 422, "pricing_invalid")
    body["pricing"]["prompt"] = "799999"
    assert post(management, body).status_code == 201
    assert PrivateEndpoint.objects.get().price.cache_write == Decimal("999998.75")
