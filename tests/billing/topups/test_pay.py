"""Tests the page on which a person pays a top-up."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from billing.models import TopUp
from billing.topups.chains import Chain
from config.clocks.clock import clock
from tests.support.chains.nodes import RECIPIENT, Contract
from tests.support.chains.payments import ask, look
from tests.support.database import snapshots
from tests.support.factories import Tenant

SENDER = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"


def test_page_shows_the_payment_and_hides_the_organization(
    tenant: Tenant, chain: Chain, client: Client
) -> None:
    top_up = ask(tenant, chain, SENDER, by="key secret-label")
    response = client.get(f"/pay/{top_up.pk}")
    assert response.status_code == 200
    text = response.content.decode()
    uri = (
        f"ethereum:{chain.token.contract}@{chain.chain_id}/transfer?address={RECIPIENT}"
        f"&amp;uint256={top_up.units}"
    )
    for shown in (
        top_up.amount_text.split()[0], RECIPIENT, SENDER, chain.token.contract, str(top_up.units),
        uri, "Another token or chain is not seen here",
    ):  # fmt: skip
        assert shown in text
    # The page reloads itself when scripts are disabled.
    assert '<noscript><meta http-equiv="refresh" content="15"></noscript>' in text
    for hidden in ("Acme", str(tenant.organization.pk), "secret-label", chain.rpc_url):
        assert hidden not in text
    assert re.findall(r"<script(?![^>]*src=\"/static/)|\son\w+=|\sstyle=|<style", text) == []
    policy = response["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response["Cache-Control"] == "no-store"
    assert response["Referrer-Policy"] == "no-referrer"
    assert "sessionid" not in response.cookies
    assert "csrftoken" not in response.cookies


def test_status_route_returns_the_status_as_json(
    tenant: Tenant, chain: Chain, client: Client
) -> None:
    top_up = ask(tenant, chain, SENDER)
    data = client.get(f"/pay/{top_up.pk}/status").json()
    assert data["seconds_left"] in (3_598, 3_599, 3_600)
    del data["seconds_left"]
    assert data == {
        "status": "open",
        "said": "Waiting for the payment",
        "confirmations": 0,
        "is_final": False,
    }
    TopUp.objects.update(expires_at=clock.now())
    assert client.get(f"/pay/{top_up.pk}/status").json() == {
        "status": "expired",
        "said": "Expired: do not pay any more",
        "confirmations": 0,
        "seconds_left": 0,
        "is_final": False,
    }


def test_a_chain_that_left_the_settings_is_not_paid_until_it_comes_back(
    tenant: Tenant, chain: Chain, client: Client, token: Contract, settings: Any
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    path = f"/pay/{top_up.pk}"
    settings.CHAINS = {}
    with snapshots.unchanged():
        assert client.get(f"{path}/status").json() == {
            "status": "expired",
            "said": "This service does not read the chain any more: do not pay",
            "confirmations": 0,
            "seconds_left": 0,
            "is_final": False,
        }
        assert '<body data-status="expired">' in client.get(path).content.decode()
    settings.CHAINS = {chain.chain_id: chain}
    assert client.get(f"{path}/status").json()["status"] == "open"
    assert '<body data-status="open">' in client.get(path).content.decode()
    token.pay(top_up.units)
    look(chain)
    settings.CHAINS = {}
    assert client.get(f"{path}/status").json()["said"] == "Paid and credited"
    top_up.refresh_from_db()
    assert top_up.status == "confirmed"


def test_a_seen_payment_on_a_chain_that_left_the_settings_stays_seen(
    tenant: Tenant, chain: Chain, client: Client, settings: Any
) -> None:
    top_up = ask(tenant, chain, SENDER)
    top_up.mark_seen(tx_hash="0x01", block_number=1)
    path = f"/pay/{top_up.pk}/status"
    before = client.get(path).json()
    settings.CHAINS = {}
    after = client.get(path).json()
    said = [shown.pop("said") for shown in (before, after)]
    assert said == [
        "Payment seen, waiting until it is final",
        "Payment seen; it is credited once this service reads the chain again",
    ]
    assert (after["status"], after["confirmations"]) == ("seen", before["confirmations"])


def test_a_payment_in_review_is_not_said_to_be_of_another_amount_alone(
    tenant: Tenant, chain: Chain, client: Client, token: Contract
) -> None:
    top_up = ask(tenant, chain, token.payers[0])
    long_ago = clock.now() - timedelta(days=1)
    TopUp.objects.update(expires_at=long_ago, payable_until=long_ago)
    token.pay(top_up.units)
    look(chain)
    assert client.get(f"/pay/{top_up.pk}/status").json() == {
        "status": "review",
        "said": "The payment is late or of another amount: a person looks at it",
        "confirmations": 0,
        "seconds_left": 0,
        "is_final": False,
    }


def test_unknown_page_returns_404(db: None, client: Client) -> None:
    response = client.get(f"/pay/{uuid4()}")
    assert response.status_code == 404
    assert b"Payment not found" in response.content
    answer = client.get(f"/pay/{uuid4()}/status")
    assert (answer.status_code, json.loads(answer.content)["error"]["code"]) == (404, 404)


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_page_allows_only_get_and_head(tenant: Tenant, chain: Chain, method: str) -> None:
    top_up = ask(tenant, chain, SENDER)
    response = getattr(Client(enforce_csrf_checks=True), method)(f"/pay/{top_up.pk}")
    assert (response.status_code, response["Allow"]) == (405, "GET, HEAD")
