"""The routes of webhooks: what they show, what they refuse, and that a refusal changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.test import APIClient

from accounts.webhooks.delivering import event_source
from accounts.webhooks.models import Subscription
from config.apps import event_kinds
from config.audit.entries import AuditEntry
from config.events.outbox import Event
from tests.support import factories
from tests.support.database.snapshots import everything, unchanged
from tests.support.factories import Tenant
from tests.support.upstreams.receiving import KEY, Receiver, verify

URL = "https://hooks.example.com/causeway"
ROUTE = "/api/v1/webhooks"


@pytest.fixture
def api(tenant: Tenant) -> APIClient:
    Event.objects.all().delete()
    return factories.client(tenant.management_key)


def create(api: APIClient, **fields: Any) -> dict[str, Any]:
    answer = api.post(ROUTE, {"url": URL, **fields}, format="json")
    assert answer.status_code == 201, answer.json()
    body: dict[str, Any] = answer.json()
    return body


def test_a_webhook_is_created_shown_changed_and_deleted(api: APIClient) -> None:
    made = create(api, name="Billing", events=["balance.low", "budget.used"])
    assert made["secret"].startswith("whsec_")
    shown = made["data"]
    assert {name: shown[name] for name in ("form", "name", "url", "events", "disabled")} == {
        "form": "webhook",
        "name": "Billing",
        "url": URL,
        "events": ["balance.low", "budget.used"],
        "disabled": False,
    }
    address = f"{ROUTE}/{shown['id']}"
    assert api.get(address).json() == {"data": shown}
    listed = api.get(ROUTE).json()
    assert (listed["data"], listed["total_count"]) == ([shown], 1)

    changes = {"events": None, "disabled": True, "url": f"{URL}/2/"}
    changed = api.patch(address, changes, format="json").json()["data"]
    assert {name: changed[name] for name in changes} == changes
    assert api.delete(address).json() == {"deleted": True}
    assert api.get(address).status_code == 404


def test_the_secret_is_shown_once_and_stored_encrypted(api: APIClient) -> None:
    made = create(api)
    stored = Subscription.objects.get()
    assert made["secret"].encode() not in bytes(stored.sealed)
    address = f"{ROUTE}/{stored.pk}"
    assert made["secret"] not in str([api.get(address).json(), api.get(ROUTE).json()])
    assert made["secret"] not in str(everything())
    assert made["secret"] not in str(list(AuditEntry.objects.values()))

    rotated = api.post(f"{address}/rotate-secret", {"overlap_seconds": 60}, format="json").json()
    assert rotated["secret"] != made["secret"]
    assert rotated["data"]["previous_secret_until"] is not None


def test_the_url_of_a_chat_is_a_secret(api: APIClient) -> None:
    secret = "https://hooks.slack.example.com/services/T000/B000/canary-of-a-chat"
    made = create(api, form="slack", url=secret)
    assert made["secret"] is None
    assert made["data"]["url"] == "https://hooks.slack.example.com/…"
    assert "canary-of-a-chat" not in str(everything())
    assert Subscription.objects.get().reveal_url() == secret
    answer = api.post(f"{ROUTE}/{made['data']['id']}/rotate-secret", {}, format="json")
    assert answer.status_code == 400


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"url": "http://hooks.example.com/"}, 422, "begin with https"),
        ({"url": "https://hooks.example.com/?token=1"}, 422, "query"),
        ({"url": "https://169.254.169.254/latest"}, 422, "not allowed"),
        ({"url": "https://10.0.0.1/"}, 422, "not allowed"),
        ({"url": "https://[::1]/"}, 422, "not allowed"),
        ({"url": "https://0x7f000001/"}, 422, "host"),
        ({"url": "https://user:pass@hooks.example.com/"}, 422, "user name"),
        ({"url": 5}, 400, "string"),
        ({"url": URL, "events": []}, 400, "at least one kind"),
        ({"url": URL, "events": ["key.exploded"]}, 400, "no kind of event"),
        ({"url": URL, "events": ["grant.waiting"]}, 400, "no kind of event"),
        ({"url": URL, "events": ["webhook.test"]}, 400, "no kind of event"),
        ({"url": URL, "form": "email"}, 400, "one of"),
        ({"url": URL, "secret": "whsec_mine"}, 400, "Unknown field"),
        ({}, 400, "required"),
    ],
)
def test_a_refusal_says_what_to_do_and_changes_nothing(
    api: APIClient, fields: dict[str, Any], status: int, text: str
) -> None:
    with unchanged():
        answer = api.post(ROUTE, fields, format="json")
    assert answer.status_code == status
    assert text in answer.json()["error"]["message"]


def test_another_organizations_webhook_does_not_exist(api: APIClient) -> None:
    other = factories.make_tenant("Other")
    theirs = create(factories.client(other.management_key))["data"]["id"]
    operators, _ = Subscription.objects.create_subscription(
        organization=None, form="webhook", url=URL
    )
    with unchanged():
        for pk in (theirs, operators.pk):
            address = f"{ROUTE}/{pk}"
            answers = [
                api.get(address),
                api.patch(address, {"name": "mine"}, format="json"),
                api.delete(address),
                api.post(f"{address}/test"),
                api.post(f"{address}/rotate-secret", {}, format="json"),
                api.get(f"{address}/deliveries"),
            ]
            assert {answer.status_code for answer in answers} == {404}
        assert api.get(ROUTE).json()["data"] == []


def test_an_inference_key_manages_no_webhooks(tenant: Tenant) -> None:
    inference = factories.client(tenant.api_key)
    assert inference.get(ROUTE).status_code == 403
    assert inference.post(ROUTE, {"url": URL}, format="json").status_code == 403


def test_the_test_button_and_redelivery_reach_the_receiver(
    api: APIClient, receiver: Receiver
) -> None:
    made = create(api, url=receiver.url, events=["key.created"])
    address = f"{ROUTE}/{made['data']['id']}"
    answer = api.post(f"{address}/test")
    assert answer.status_code == 202
    delivery = answer.json()["data"]
    assert (delivery["event"], delivery["status"], delivery["attempts"]) == (
        "webhook.test", "pending", 0,
    )  # fmt: skip
    event_source.run()
    headers, body = receiver.messages[-1]
    assert headers["webhook-id"] == delivery["event_id"]
    assert verify(made["secret"], headers, body)["type"] == "webhook.test"

    [logged] = api.get(f"{address}/deliveries").json()["data"]
    assert (logged["id"], logged["status"], logged["response_status"]) == (
        delivery["id"], "delivered", 200,
    )  # fmt: skip
    assert logged["next_attempt_at"] is None
    again = api.post(f"{address}/deliveries/{delivery['id']}/redeliver")
    assert again.status_code == 202
    event_source.run()
    assert receiver.ids == [delivery["event_id"]] * 2

    api.patch(address, {"disabled": True}, format="json")
    with unchanged():
        assert api.post(f"{address}/test").status_code == 409
        assert api.post(f"{address}/deliveries/{delivery['id']}/redeliver").status_code == 409
        unknown = "0192f0c1-8f6e-4b1e-9f43-3a1d0e9b7a10"
        assert api.post(f"{address}/deliveries/{unknown}/redeliver").status_code == 404


def test_samples_have_what_their_kinds_promise() -> None:
    assert event_kinds()["key.created"].sample.keys() == KEY.keys()
