"""Fees of own credentials: the exact hold and charge, and requests that need no credits."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from billing import ledger
from billing.models import Account, Meter, Transfer
from catalog.pricing import usd
from inference.admission.estimate import fee_nano
from inference.models import Generation
from tests.support import factories
from tests.support.admission.entries import bound_of
from tests.support.factories import Tenant
from tests.support.inference.site import Site
from tests.support.ledger import assert_in_order


@pytest.fixture
def poor(site: Site) -> Site:
    """Makes a tenant without credits the tenant of the site."""
    site.tenant = factories.make_tenant("Poor", credits_usd=0)
    return site


def price_of_one(nano: str) -> Any:
    """Returns a price of ``nano`` nano-USD per prompt token and twice that per answer token."""
    rate = Decimal(nano).scaleb(-9)
    return factories.make_price(f"{rate:f}", f"{2 * rate:f}")


def available(tenant: Tenant) -> int:
    return Account.objects.get(organization=tenant.organization, kind="credits").available


@pytest.mark.parametrize(
    ("percent", "nano", "half_even", "up"),
    [
        ("5", 0, 0, 0),
        ("5", 10, 0, 1),
        ("5", 30, 2, 2),
        ("5", 50, 2, 3),
        ("5", 11, 1, 1),
        ("5", 9, 0, 1),
        ("5", 100, 5, 5),
        ("0", 10**9, 0, 0),
        ("0.1", 1_500, 2, 2),
        ("100", 2**62, 2**62, 2**62),
    ],
)
def test_a_fee_is_rounded_half_even_and_its_hold_is_rounded_up(
    percent: str, nano: int, half_even: int, up: int
) -> None:
    assert fee_nano(nano, Decimal(percent)) == half_even
    assert fee_nano(nano, Decimal(percent), round_up=True) == up


@pytest.mark.parametrize("kind", ["private", "public"])
@pytest.mark.parametrize(
    # 2 prompt tokens at the price and 4 answer tokens at twice the price: 10 times the price.
    ("nano", "upstream", "fee"),
    [("1", 10, 0), ("3", 30, 2), ("5", 50, 2), ("1000", 10_000, 500), ("1001", 10_010, 500)],
)
def test_credits_pay_only_the_fee_of_an_own_credential(
    site: Site, settings: Any, kind: str, nano: str, upstream: int, fee: int
) -> None:
    settings.BYOK_FEE_PERCENT = Decimal(5)
    if kind == "private":
        site.own(price=price_of_one(nano))
    else:
        # The operator has no credential at this provider: no fallback charges the full price.
        bare = factories.make_provider("bare", base_url=site.upstream.base_url)
        site.publish(provider=bare, price=price_of_one(nano))
        factories.make_credential(site.tenant, bare)
    before = available(site.tenant)
    body = site.chat_body(max_tokens=100)
    usage = site.post(body).json()["usage"]
    assert (usage["is_byok"], usage["cost"]) == (True, usd(fee))
    assert usage["cost_details"]["upstream_inference_cost"] == usd(upstream)
    row = site.settled()
    worst = int(Decimal(nano) * (bound_of(body) + 200))
    assert (row.upstream_hold_nano, row.hold_nano) == (worst, -(-worst // 20))
    assert (row.upstream_cost_nano, row.cost_nano) == (upstream, fee)
    assert available(site.tenant) == before - fee
    transfer = Transfer.objects.get(reference=row.pk)
    assert (transfer.amount_nano, transfer.posted_nano) == (row.hold_nano, fee or None)
    meter = Meter.objects.get(subject_id=row.api_key_id)
    assert (meter.cost, meter.byok, meter.held_cost, meter.held_byok) == (fee, upstream, 0, 0)
    assert_in_order()


@pytest.mark.parametrize("kind", ["private", "public"])
def test_an_own_credential_without_a_fee_needs_no_credits(poor: Site, kind: str) -> None:
    if kind == "private":
        poor.own(price=price_of_one("1000"))
    else:
        poor.publish(price=price_of_one("1000"))
        factories.make_credential(poor.tenant, poor.provider)
    assert poor.chat().status_code == 200
    row = poor.settled()
    assert (row.is_byok, row.hold_nano, row.cost_nano) == (True, 0, 0)
    assert row.upstream_cost_nano == 10_000
    assert not Transfer.objects.filter(organization=poor.tenant.organization).exists()
    assert_in_order()


@pytest.mark.parametrize(("missing", "status"), [(0, 200), (1, 402)])
def test_a_fee_beyond_the_credits_is_refused(
    poor: Site, settings: Any, missing: int, status: int
) -> None:
    settings.BYOK_FEE_PERCENT = Decimal(5)
    poor.own(price=price_of_one("1000"))
    body = poor.chat_body(max_tokens=100)
    hold = 50 * (bound_of(body) + 200)
    ledger.grant(poor.tenant.organization.pk, hold - missing, actor="test")
    assert poor.post(body).status_code == status
    if status == 402:
        poor.assert_nothing_happened()
        assert available(poor.tenant) == hold - missing
        return
    assert poor.settled().hold_nano == hold
    assert available(poor.tenant) == hold - 500
    assert_in_order()


@pytest.mark.parametrize("credits_usd", [1000, 0])
def test_a_private_endpoint_falls_back_to_an_affordable_public_one(
    site: Site, credits_usd: int
) -> None:
    site.tenant = factories.make_tenant("Other", credits_usd=credits_usd)
    site.allow_fallback()
    site.own("sim-status:503", price=price_of_one("0"))
    public = site.another_provider("public")
    site.publish(provider=public, price=price_of_one("1000"))
    answer = site.chat()
    row = site.settled()
    found = (answer.status_code, row.is_byok, row.cost_nano, len(row.attempts))
    if credits_usd:
        assert found == (200, False, 10_000, 2)
        assert available(site.tenant) == credits_usd * 10**9 - 10_000
    else:
        assert found == (503, True, 0, 1)
        assert row.hold_nano == 0
    assert len(site.dialled()) == len(row.attempts)
    assert_in_order()


def test_a_hold_covers_the_fallback_to_the_operators_credential(site: Site, settings: Any) -> None:
    settings.BYOK_FEE_PERCENT = Decimal(5)
    site.publish(price=price_of_one("1000"))
    factories.make_credential(site.tenant, site.provider)
    body = site.chat_body(max_tokens=100)
    assert site.post(body).json()["usage"]["is_byok"] is True
    row = site.settled()
    worst = 1000 * (bound_of(body) + 200)
    # The hold covers the operator's price; the fee of the own credential is 5 % of it.
    assert (row.hold_nano, row.upstream_hold_nano, row.cost_nano) == (worst, worst // 20, 500)
    assert_in_order()


def test_a_private_endpoint_serves_a_tenant_without_credits(poor: Site) -> None:
    poor.own(price=price_of_one("1000"))
    poor.publish(provider=poor.another_provider("public"), price=price_of_one("1"))
    assert poor.chat().json()["usage"]["is_byok"] is True
    assert poor.settled().hold_nano == 0
    assert_in_order()


def test_a_budget_that_includes_own_credentials_counts_price_and_fee(
    site: Site, settings: Any
) -> None:
    settings.BYOK_FEE_PERCENT = Decimal(5)
    site.own(price=price_of_one("1000"))
    key = site.tenant.organization.api_keys.get(is_management=False)
    body = site.chat_body(max_tokens=100)
    both = 1050 * (bound_of(body) + 200)
    key.edit(limit_nano=both - 1, include_byok_in_limit=True)
    refused = site.post(body)
    assert refused.status_code == 402
    told = refused.json()["error"]["metadata"]
    assert (told["limit"], told["estimate_usd"]) == ("key_limit", usd(both))
    site.assert_nothing_happened()
    key.edit(limit_nano=both)
    assert site.post(body).status_code == 200
    assert site.settled().cost_nano == 500
    meter = Meter.objects.get(subject_id=key.pk)
    assert (meter.cost, meter.byok) == (500, 10_000)
    assert_in_order()
    key.edit(limit_nano=10_500)
    assert site.post(body).status_code == 403
    assert Generation.objects.count() == 1


def test_a_refused_fee_names_the_balance_and_the_fee(poor: Site, settings: Any) -> None:
    settings.BYOK_FEE_PERCENT = Decimal(5)
    poor.own(price=price_of_one("1000"))
    key = poor.tenant.organization.api_keys.get(is_management=False)
    body = poor.chat_body(max_tokens=100)
    fee = 50 * (bound_of(body) + 200)
    # The limit is below the price, but the key pays only the fee.
    key.edit(limit_nano=2 * fee)
    ledger.grant(poor.tenant.organization.pk, fee - 1, actor="test")
    error = poor.post(body).json()["error"]
    assert (error["code"], error["metadata"]["limit"]) == (402, "balance")
    told = error["metadata"]
    assert (told["balance_usd"], told["estimate_usd"]) == (usd(fee - 1), usd(fee))
    poor.assert_nothing_happened()
