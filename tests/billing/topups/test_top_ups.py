"""Tests the routes of top-ups: fields, limits, idempotency keys and races."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from billing import ledger
from billing.models import ChainState, TopUp
from billing.topups.chains import Chain
from config.clocks.clock import clock
from config.local.bootstrap import PROJECT
from tests.support import factories
from tests.support.chains.nodes import RECIPIENT, Contract, chain_of
from tests.support.chains.payments import ask, look
from tests.support.database import snapshots
from tests.support.factories import Tenant
from tests.support.governance import refusal, refused

PATH = "/api/v1/credits/crypto"
SENDER = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"


def body(chain: Chain, **fields: Any) -> dict[str, Any]:
    return {"amount": 10, "sender": SENDER, "chain_id": chain.chain_id, **fields}


def create(client: APIClient, chain: Chain, key: str, **fields: Any) -> Any:
    return client.post(PATH, body(chain, **fields), headers={"Idempotency-Key": key})


def raw(client: APIClient, chain: Chain, **texts: str) -> Any:
    """Sends a body whose fields have these texts, which need not be JSON."""
    fields = {"amount": "10", "sender": f'"{SENDER}"', "chain_id": str(chain.chain_id), **texts}
    text = ", ".join(f'"{name}": {value}' for name, value in fields.items())
    return client.post(PATH, f"{{{text}}}", content_type="application/json")


def error_type(response: Any) -> str:
    return str(response.json()["error"]["metadata"]["error_type"])


def test_the_example_of_the_document_is_accepted(tenant: Tenant, chain: Chain) -> None:
    [example] = json.loads((PROJECT / "billing" / "examples.json").read_text()).values()

    answer = factories.client(tenant.api_key).post(
        PATH, {**example, "chain_id": chain.chain_id}, format="json"
    )

    assert answer.status_code == 200, answer.content


@pytest.mark.parametrize("actor", ["inference", "management"])
def test_create_returns_the_exact_transfer(
    actor: str, request: pytest.FixtureRequest, chain: Chain
) -> None:
    client: APIClient = request.getfixturevalue(actor)
    response = client.post(PATH, body(chain, amount=12.34))
    assert response.status_code == 200
    top_up = TopUp.objects.get()
    tail = top_up.units - 12_340_000
    assert tail in range(1, 10_000)
    data = response.json()["data"]
    assert data == {
        "id": str(top_up.pk),
        "created_at": data["created_at"],
        "expires_at": data["expires_at"],
        "web3_data": {
            "transfer_intent": {
                "call_data": {
                    "deadline": data["expires_at"],
                    "fee_amount": "0",
                    "id": f"0x{top_up.pk.hex}",
                    "operator": RECIPIENT,
                    "prefix": "0x",
                    "recipient": RECIPIENT,
                    "recipient_amount": str(top_up.units),
                    "recipient_currency": chain.token.contract,
                    "refund_destination": SENDER,
                    "signature": "0x",
                },
                "metadata": {
                    "chain_id": chain.chain_id,
                    "contract_address": chain.token.contract,
                    "sender": SENDER,
                },
            }
        },
    }
    assert abs(top_up.expires_at - top_up.created_at - timedelta(hours=1)) < timedelta(seconds=10)
    assert top_up.payable_until - top_up.expires_at == timedelta(days=1)
    assert (top_up.status, top_up.amount_nano) == ("open", 12_340_000_000)


def test_retrieve_returns_the_status_of_a_top_up(
    tenant: Tenant, inference: APIClient, chain: Chain
) -> None:
    top_up = ask(tenant, chain, SENDER)
    created = inference.get(f"{PATH}/{top_up.pk}").json()["data"]
    created.pop("web3_data", None)
    assert created == {
        "id": str(top_up.pk),
        "created_at": created["created_at"],
        "expires_at": created["expires_at"],
        "status": "open",
        "confirmations": 0,
        "transaction_hash": None,
        "credited_at": None,
        "amount": 10.0,
        "payment_url": f"http://testserver/pay/{top_up.pk}",
    }


@pytest.mark.parametrize("unknown", ["x", "0", "5f0f3c0e-0d7b-4c8a-9a53-2b7ad0f4b2b1", "../crypto"])
def test_retrieve_returns_404_for_an_unknown_top_up(inference: APIClient, unknown: str) -> None:
    assert inference.get(f"{PATH}/{unknown}").status_code == 404


def test_retrieve_returns_404_for_a_top_up_of_another_organization(
    tenant: Tenant, chain: Chain
) -> None:
    top_up = ask(tenant, chain, SENDER)
    other = factories.client(factories.make_tenant("Other").api_key)
    response = other.get(f"{PATH}/{top_up.pk}")
    assert (response.status_code, error_type(response)) == (404, "top_up_not_found")


@pytest.mark.parametrize(
    ("amount", "cents"),
    [
        ("1", 100), ("1.00", 100), ("1.01", 101), ("99999.99", 9_999_999), ("100000", 10_000_000),
        ("100000.00", 10_000_000), ("1e2", 10_000), ("10.100", 1_010), ("0.1e2", 1_000),
    ],
)  # fmt: skip
def test_create_reads_an_amount_without_rounding(
    inference: APIClient, chain: Chain, amount: str, cents: int
) -> None:
    assert raw(inference, chain, amount=amount).status_code == 200
    top_up = TopUp.objects.get()
    assert top_up.amount_nano == cents * 10**7
    assert (top_up.units - 1) // 10_000 == cents


@pytest.mark.parametrize(
    ("field", "text"),
    [
        *(("amount", text) for text in (
            "0.99", "0", "-1", "-10", "0.999999", "1.001", "1.005", "100000.01", "100001", "1e6",
            "1e999999999", "1e-2", '"10"', "true", "null", "[10]", "{}", "NaN", "Infinity",
            "1.0000000000000000000000000000000000000000000000000001", "9" * 400, "",
        )),
        *(("sender", json.dumps(sender)) for sender in (
            SENDER[:-1], SENDER + "0", SENDER[2:], "0X" + SENDER[2:], SENDER + "\n", f" {SENDER}",
            SENDER.replace("5aA", "5Aa", 1), "0x" + "0" * 40, "0x" + "g" * 40, "", "vitalik.eth",
            5, None, True, [SENDER], "0x" + "١" * 40,
        )),
        *(("chain_id", text) for text in (
            "0", "-1", "2", "9223372036854775808", "1" * 50, '"{id}"', "{id}.0", "true", "null",
        )),
    ],
)  # fmt: skip
def test_create_refuses_an_invalid_field(
    inference: APIClient, chain: Chain, field: str, text: str
) -> None:
    text = text.replace("{id}", str(chain.chain_id))
    with snapshots.unchanged():
        status, names = refused(raw(inference, chain, **{field: text}))
    # What is no JSON has no fields.
    assert (status, names <= {field}) == (400, True)


def test_create_names_the_chains_that_it_offers(inference: APIClient, chain: Chain) -> None:
    answer = inference.post(PATH, body(chain, chain_id=2))
    assert refused(answer) == (400, {"chain_id"})
    [reason] = answer.json()["error"]["metadata"]["fields"].values()
    assert reason == f"Must be one of: {chain.chain_id}."


@pytest.mark.parametrize("sender", [SENDER.lower(), "0x" + SENDER[2:].upper(), SENDER])
def test_create_stores_the_sender_with_its_checksum(
    inference: APIClient, chain: Chain, sender: str
) -> None:
    assert inference.post(PATH, body(chain, sender=sender)).status_code == 200
    assert TopUp.objects.get().sender == SENDER


@pytest.mark.parametrize("name", ["amount", "sender", "chain_id"])
def test_create_requires_every_field(inference: APIClient, chain: Chain, name: str) -> None:
    sent = body(chain)
    del sent[name]
    response = inference.post(PATH, sent)
    assert response.status_code == 400
    assert name in response.json()["error"]["message"]


def test_create_refuses_an_unknown_field(inference: APIClient, chain: Chain) -> None:
    response = inference.post(PATH, body(chain, token="USDT"))
    assert response.status_code == 400
    assert "token" in response.json()["error"]["message"]
    assert TopUp.objects.count() == 0


def test_create_reports_missing_configuration(inference: APIClient) -> None:
    response = inference.post(PATH, {"amount": 10, "sender": SENDER, "chain_id": 1})
    assert (response.status_code, error_type(response)) == (503, "top_up_unavailable")
    message = "This service has no chain configured for top-ups. Ask its operator."
    assert response.json()["error"]["message"] == message


def test_create_refuses_a_chain_before_its_first_scan(
    inference: APIClient, token: Contract, offer: Callable[[Chain], Chain]
) -> None:
    chain = offer(chain_of(token))
    response = inference.post(PATH, body(chain))
    assert (response.status_code, error_type(response)) == (503, "top_up_unavailable")
    ChainState.objects.create(chain_id=chain.chain_id)
    assert inference.post(PATH, body(chain)).status_code == 503
    look(chain)
    assert inference.post(PATH, body(chain)).status_code == 200


def test_create_refuses_a_halted_chain(inference: APIClient, chain: Chain) -> None:
    ChainState.objects.update(halted_at=timezone.now(), halt_reason="x")
    response = inference.post(PATH, body(chain))
    assert (response.status_code, error_type(response)) == (503, "top_up_unavailable")
    assert TopUp.objects.count() == 0


def test_create_refuses_a_sixth_open_top_up_until_one_expires(
    tenant: Tenant, inference: APIClient, chain: Chain
) -> None:
    top_ups = [ask(tenant, chain, SENDER, usd_cents=100 + number) for number in range(5)]
    with snapshots.unchanged():
        response = inference.post(PATH, body(chain))
    assert (response.status_code, error_type(response)) == (429, "rate_limit_exceeded")
    assert 3_590 <= int(response["Retry-After"]) <= 3_600
    other = factories.client(factories.make_tenant("Other").api_key)
    assert other.post(PATH, body(chain)).status_code == 200
    TopUp.objects.filter(pk=top_ups[0].pk).update(expires_at=clock.now())
    assert inference.post(PATH, body(chain)).status_code == 200
    assert inference.post(PATH, body(chain)).status_code == 429


@pytest.mark.django_db(transaction=True)
def test_six_concurrent_requests_create_five_top_ups(
    tenant: Tenant, chain: Chain, together: Callable[..., list[Any]]
) -> None:
    clients = [factories.client(tenant.api_key) for _ in range(6)]
    answers = together(*(lambda c=c: c.post(PATH, body(chain)) for c in clients))
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [429]
    assert TopUp.objects.count() == 5


def test_top_ups_of_one_sender_have_different_units_across_organizations(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.topups.models.top_ups.MAX_TAIL", 6)
    tenants = [factories.make_tenant(f"Org {number}") for number in range(3)]
    asked = [ask(tenant, chain, SENDER) for tenant in tenants for _ in range(2)]
    assert sorted(top_up.units for top_up in asked) == [10_000_000 + tail for tail in range(1, 7)]
    response = factories.client(tenants[0].api_key).post(PATH, body(chain))
    assert response.status_code == 429
    assert TopUp.objects.count() == 6
    assert ask(tenants[0], chain, RECIPIENT).units in range(10_000_001, 10_000_007)


@pytest.mark.django_db(transaction=True)
def test_concurrent_top_ups_of_one_sender_have_different_units(
    chain: Chain, together: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.topups.models.top_ups.MAX_TAIL", 12)
    tenants = [factories.make_tenant(f"Org {number}") for number in range(12)]
    asked = together(*(lambda t=t: ask(t, chain, SENDER) for t in tenants))
    assert sorted(top_up.units for top_up in asked) == [10_000_000 + tail for tail in range(1, 13)]


def test_create_returns_the_first_top_up_for_a_repeated_key(
    inference: APIClient, chain: Chain
) -> None:
    first = create(inference, chain, "k 1")
    ChainState.objects.update(halted_at=timezone.now())
    again = create(inference, chain, "k 1", sender=SENDER.lower())
    assert (again.status_code, again.json()) == (200, first.json())
    ChainState.objects.update(halted_at=None)
    for fields in ({"amount": 11}, {"sender": RECIPIENT}):
        other = create(inference, chain, "k 1", **fields)
        assert (other.status_code, error_type(other)) == (422, "idempotency_key_reused")
    assert TopUp.objects.count() == 1
    elsewhere = factories.client(factories.make_tenant("Other").api_key)
    theirs = create(elsewhere, chain, "k 1").json()
    assert theirs["data"]["id"] != first.json()["data"]["id"]


def test_a_repeated_key_returns_no_transfer_on_a_chain_that_left_the_settings(
    tenant: Tenant, inference: APIClient, chain: Chain, settings: Any
) -> None:
    first = create(inference, chain, "k 1")
    path = f"{PATH}/{first.json()['data']['id']}"
    for chains in ({}, {chain.chain_id + 1: chain}):
        settings.CHAINS = chains
        with snapshots.unchanged():
            again = create(inference, chain, "k 1")
            assert (again.status_code, error_type(again)) == (503, "top_up_unavailable")
            assert again.json()["error"]["message"] == (
                f"This service does not read chain {chain.chain_id} any more. Do not pay the "
                "top-up. Ask the operator of this service."
            )
            assert inference.get(path).json()["data"]["status"] == "expired"
    settings.CHAINS = {chain.chain_id: chain}
    again = create(inference, chain, "k 1")
    assert (again.status_code, again.json()) == (200, first.json())
    assert inference.get(path).json()["data"]["status"] == "open"
    TopUp.objects.get().mark_seen(tx_hash="0x01", block_number=1)
    settings.CHAINS = {}
    again = create(inference, chain, "k 1")
    assert (again.status_code, again.json()) == (200, first.json())


@pytest.mark.parametrize("key", ["x", "x" * 255])
def test_create_stores_a_key_of_any_allowed_length(
    inference: APIClient, chain: Chain, key: str
) -> None:
    assert create(inference, chain, key).status_code == 200
    assert TopUp.objects.get().idempotency_key == key


@pytest.mark.parametrize("key", ["", "x" * 256, "é", "a\tb"])
def test_create_refuses_a_malformed_key(inference: APIClient, chain: Chain, key: str) -> None:
    assert create(inference, chain, key).status_code == 400
    assert TopUp.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_concurrent_requests_with_one_key_create_one_top_up(
    tenant: Tenant, chain: Chain, together: Callable[..., list[Any]]
) -> None:
    clients = [factories.client(tenant.api_key) for _ in range(16)]
    answers = together(*(lambda c=c: create(c, chain, "once") for c in clients))
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["data"]["id"] for answer in answers} == {str(TopUp.objects.get().pk)}


def test_credits_shows_total_credits_and_total_usage(
    tenant: Tenant, management: APIClient, inference: APIClient
) -> None:
    before = management.get("/api/v1/credits").json()["data"]
    assert before["total_usage"] == 0.0
    ledger.grant(tenant.organization.pk, 12_500_000_001, actor="test")
    assert management.get("/api/v1/credits").json() == {
        "data": {"total_credits": before["total_credits"] + 12.500000001, "total_usage": 0.0}
    }
    assert inference.get("/api/v1/credits").status_code == 403


@pytest.mark.parametrize("actor", ["inference", "management"])
@pytest.mark.parametrize("sent", ["", "{", '{"amount": 10}'])
def test_coinbase_route_returns_410(actor: str, sent: str, request: pytest.FixtureRequest) -> None:
    client: APIClient = request.getfixturevalue(actor)
    response = client.post("/api/v1/credits/coinbase", sent, content_type="application/json")
    assert response.status_code == 410
    message = "POST /credits/coinbase was removed. Use POST /credits/crypto instead."
    assert response.json() == refusal(410, "gone", message)


def test_coinbase_route_requires_a_key_and_allows_only_post(
    anonymous: APIClient, inference: APIClient
) -> None:
    assert anonymous.post("/api/v1/credits/coinbase").status_code == 401
    assert inference.get("/api/v1/credits/coinbase").status_code == 405
