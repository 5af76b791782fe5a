"""What reaches real receivers that fail, hang, redirect, answer gigabytes, and recover."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from standardwebhooks.webhooks import WebhookVerificationError

from accounts.models import Organization
from accounts.webhooks import delivering
from accounts.webhooks.delivering import event_source
from accounts.webhooks.dispatching import dispatch_events
from accounts.webhooks.metrics import DeliveryCollector
from accounts.webhooks.models import Delivery, Subscription
from config.events.outbox import KEPT, Event, first_event_id, record_event
from config.outbound import engine, sending
from config.outbound.engine import Places
from config.outbound.sending import SendingOutcome
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.upstreams.receiving import (
    KEY,
    TAKEN,
    Receiver,
    run_receiver,
    taking_after,
    verify,
)
from tests.support.upstreams.tls import answering
from tests.support.upstreams.tls import sending as sending_bytes

Subscribe = Callable[..., tuple[Subscription, str]]
Tell = Callable[..., None]
Later = Callable[[], int]
Results = Callable[[], list[tuple[str, int, str]]]


def test_an_event_is_delivered_once_and_signed(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, tenant: Tenant, results: Results
) -> None:
    _, secret = subscribe(receiver.url)
    tell()
    assert event_source.run() == 1
    assert event_source.run() == 0

    [(headers, body)] = receiver.messages
    event = Event.objects.get()
    assert headers["webhook-id"] == str(event.pk)
    assert headers["content-type"] == "application/json"
    assert verify(secret, headers, body) == {
        "type": "key.created",
        "timestamp": event.created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "organization_id": str(tenant.organization.pk),
        "data": KEY,
    }
    with pytest.raises(WebhookVerificationError):
        verify(secret, headers, body + b" ")
    assert results() == [("delivered", 1, "")]
    assert Delivery.objects.get().response_status == 200


def test_only_the_chosen_kinds_of_ones_own_organization_are_told(
    subscribe: Subscribe, tell: Tell, receiver: Receiver
) -> None:
    subscribe(receiver.url, kinds=["key.revoked"])
    other = factories.make_tenant("Other")
    tell()
    tell(kind="key.revoked")
    record_event("key.revoked", organization=other.organization.pk, data={**KEY, "name": "theirs"})
    data = {"source": "litellm", "count": 1, "risky": 0, "subjects": []}
    record_event("catalog.proposed", organization=None, data=data)
    event_source.run()
    assert [json.loads(body)["data"]["name"] for _, body in receiver.messages] == ["Production"]


def test_operators_are_told_of_every_organization_and_organizations_not_of_their_affairs(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, tenant: Tenant
) -> None:
    with run_receiver() as own:
        subscribe(receiver.url, organization=None)
        subscribe(own.url)
        tell()
        data = {"organization": "Acme", "amount_usd": "9", "requested_by": "operator ann"}
        record_event("grant.waiting", organization=tenant.organization.pk, data=data)
        event_source.run()
        assert [json.loads(body)["type"] for _, body in own.messages] == ["key.created"]
    kinds = sorted(json.loads(body)["type"] for _, body in receiver.messages)
    assert kinds == ["grant.waiting", "key.created"]


@pytest.mark.parametrize(
    ("script", "error", "status"),
    [
        (answering(status="500 Oops"), "The receiver answered 500.", 500),
        (answering(status="400 Bad"), "The receiver answered 400.", 400),
        (
            answering(status="302 Found", headers=("Location: http://127.0.0.1/secret",)),
            "The receiver answered with a redirect.",
            None,
        ),
        (sending_bytes(b"not HTTP at all"), "The receiver's answer is invalid.", None),
        (sending_bytes(), "The receiver could not be reached.", None),
    ],
)
def test_an_attempt_that_fails_is_repeated_with_the_same_id(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, later: Later, results: Results,
    script: Any, error: str, status: int | None,
) -> None:  # fmt: skip
    subscription, secret = subscribe(receiver.url)
    receiver.answer(script)
    tell()
    assert event_source.run() == 1
    assert results() == [("pending", 1, error)]
    assert Delivery.objects.get().response_status == status
    assert event_source.run() == 0
    subscription.refresh_from_db()
    assert subscription.failures == 1
    assert subscription.failing_since is not None

    receiver.answer(TAKEN)
    assert later() == 1
    assert results() == [("delivered", 2, "")]
    assert len(set(receiver.ids)) == 1
    headers, body = receiver.messages[-1]
    verify(secret, headers, body)
    subscription.refresh_from_db()
    assert (subscription.failures, subscription.failing_since) == (0, None)


def test_a_long_answer_is_not_read(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, results: Results
) -> None:
    sent = []

    def flood(line: socket.socket, head: bytes, body: bytes) -> bool:
        line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4000000000\r\n\r\n")
        try:
            for _ in range(4_000):
                line.sendall(b"x" * 1_000_000)
                sent.append(1)
        except OSError:
            return False
        return False

    subscribe(receiver.url)
    receiver.answer(flood)
    tell()
    event_source.run()
    assert results() == [("pending", 1, "The receiver's answer is too large.")]
    assert len(sent) < 100


def test_a_receiver_that_hangs_delays_no_other(
    tell: Tell, subscribe: Subscribe, receiver: Receiver, results: Results,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The hanging receiver answers only when the others have all of their events."""
    monkeypatch.setattr(sending, "ATTEMPT_SECONDS", 60.0)
    released, done = threading.Event(), threading.Event()
    received: list[bytes] = []

    def count(line: socket.socket, head: bytes, body: bytes) -> bool:
        received.append(body)
        if len(received) == 20:
            done.set()
            released.set()
        return TAKEN(line, head, body)

    receiver.answer(count)
    with run_receiver(taking_after(released)) as hanging:
        for _ in range(3):
            subscribe(hanging.url)
        other = factories.make_tenant("Other")
        subscribe(receiver.url, organization=other.organization)
        for number in range(20):
            tell(str(number))
            record_event("key.created", organization=other.organization.pk, data=KEY)
        event_source.run()
        # At most two attempts of one subscription, and four of one organization, ran at once.
        assert done.is_set()
    assert len(received) == 20
    assert {status for status, _, _ in results()} == {"delivered"}
    assert len(results()) == 80


def test_slow_receivers_of_many_organizations_delay_no_other(
    tell: Tell, subscribe: Subscribe, receiver: Receiver, results: Results,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Two organizations could take all four places; their receivers take everything in the end."""
    monkeypatch.setattr(sending, "ATTEMPT_SECONDS", 60.0)
    monkeypatch.setattr(delivering, "LIMITS", replace(delivering.LIMITS, total=4, slow=2))
    released = threading.Event()
    open_at_once: list[int] = []

    def count(line: socket.socket, head: bytes, body: bytes) -> bool:
        open_at_once.append(slow.server.connections)
        if len(open_at_once) == 6:
            released.set()
        return TAKEN(line, head, body)

    receiver.answer(count)
    with run_receiver(taking_after(released)) as slow:
        for name in ("Second", "Third"):
            tenant = factories.make_tenant(name)
            for _ in range(4):
                subscribe(slow.url, organization=tenant.organization)
            record_event("key.created", organization=tenant.organization.pk, data=KEY)
        Subscription.objects.update(mean_ms=5_000)
        subscribe(receiver.url)
        for name in ("Second", "Third"):
            owner = Organization.objects.get(name=name)
            record_event("key.created", organization=owner.pk, data=KEY)
        for number in range(6):
            tell(str(number))
        event_source.run()
        assert released.is_set()
    assert max(open_at_once) <= 2
    assert [status for status, _, _ in results()] == ["delivered"] * 14


def test_what_waits_for_a_slow_receiver_is_its_owners_affair(
    subscribe: Subscribe, tell: Tell, receiver: Receiver
) -> None:
    def read() -> float:
        found = {each.name: each.samples[0].value for each in DeliveryCollector().collect()}
        return found["causeway_oldest_undelivered_seconds"]

    subscribe(receiver.url)
    tell()
    dispatch_events()
    Delivery.objects.update(next_attempt_at=timezone.now() - timedelta(minutes=10))
    assert 590 < read() < 660
    Subscription.objects.update(mean_ms=5_000)
    assert read() == 0


def test_a_receiver_is_slow_by_its_last_attempts(
    subscribe: Subscribe, tell: Tell, receiver: Receiver
) -> None:
    subscription, _ = subscribe(receiver.url)
    means = []
    for duration in (9_000, 9_000, 100, 9_000, 100, 100, 100, 100):
        tell()
        delivering.dispatch_events()
        [attempt] = delivering._claim(Places())
        attempt.store(SendingOutcome(status=200, duration_ms=duration))
        subscription.refresh_from_db()
        means.append(subscription.mean_ms)
    assert means == [2_250, 3_937, 2_977, 4_482, 3_386, 2_564, 1_948, 1_486]
    tell()
    delivering.dispatch_events()
    for mean, is_slow in ((2_000, False), (2_001, True)):
        Subscription.objects.update(mean_ms=mean)
        [due] = delivering._find_due(Places())
        assert due.is_slow is is_slow


def test_an_attempt_that_does_not_end_keeps_no_run_from_ending(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, results: Results, later: Later,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The receiver answers only after the run; the attempt counts as a failure until then."""
    monkeypatch.setattr(sending, "ATTEMPT_SECONDS", 60.0)
    released = threading.Event()
    subscribe(receiver.url)
    receiver.answer(taking_after(released))
    tell()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "LEASE_SECONDS", 0.1)
        # It claims once: the lease of the delivery ends as soon.
        patch.setattr(engine, "RUN_SECONDS", 0.1)
        assert event_source.run() == 0
    assert results() == [("pending", 1, "The attempt did not end.")]
    assert Subscription.objects.get().failures == 1
    assert event_source.run() == 0, "the next attempt waits as after any failure"
    released.set()
    receiver.answer(TAKEN)
    assert later() == 1
    assert results() == [("delivered", 2, "")]


def test_places_are_given_in_turn_and_a_full_organization_hides_no_other(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, tenant: Tenant,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for _ in range(4):
        subscribe(receiver.url)
    other = factories.make_tenant("Other")
    subscribe(receiver.url, organization=other.organization)
    for _ in range(3):
        tell()
    record_event("key.created", organization=other.organization.pk, data=KEY)
    delivering.dispatch_events()
    earlier = timezone.now() - timedelta(minutes=1)
    Delivery.objects.filter(organization=tenant.organization).update(next_attempt_at=earlier)
    taken: Any = Places()
    found = delivering._find_due(taken)
    owners = [due.organization for due in found]
    assert owners == [tenant.organization.pk] * 8 + [other.organization.pk]
    monkeypatch.setattr(delivering, "LIMITS", replace(delivering.LIMITS, total=2))
    chosen = delivering._choose(found, taken)
    assert {due.organization for due in chosen.values()} == set(owners)

    monkeypatch.setattr(delivering, "_FOUND", 1)
    taken["organization", tenant.organization.pk] = 4
    [due] = delivering._find_due(taken)
    assert due.organization == other.organization.pk


def test_mails_wait_for_one_mail_server_and_leave_places_for_webhooks(
    subscribe: Subscribe, tell: Tell, receiver: Receiver
) -> None:
    """Receivers of the operators have no bulkhead of an organization."""
    for number in range(14):
        subscribe("", organization=None, form="email", email=f"op{number}@example.com")
    subscribe(receiver.url)
    tell()
    delivering.dispatch_events()
    taken: Any = Places()
    chosen = delivering._choose(delivering._find_due(taken), taken)
    assert sorted(due.url != "" for due in chosen.values()) == [False] * 12 + [True]


def test_attempts_end_after_days_and_can_be_repeated_by_hand(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, later: Later, results: Results
) -> None:
    subscribe(receiver.url)
    receiver.answer(answering(status="503 Busy"))
    tell()
    event_source.run()
    pauses = []
    for _ in range(len(delivering._PAUSES)):
        [delivery] = Delivery.objects.all()
        pauses.append((delivery.next_attempt_at - timezone.now()).total_seconds())
        assert later() == 1
    assert results() == [("failed", 11, "The receiver answered 503.")]
    assert later() == 0
    for pause, wanted in zip(pauses, delivering._PAUSES, strict=True):
        assert 0.79 * wanted - 5 < pause < 1.21 * wanted
    assert sum(delivering._PAUSES) > 3 * 86_400 - 3_600

    receiver.answer(TAKEN)
    Delivery.objects.get().redeliver()
    assert event_source.run() == 1
    assert results() == [("delivered", 1, "")]
    assert len(set(receiver.ids)) == 1


def test_gone_disables_the_receiver_and_tells_the_others(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, results: Results
) -> None:
    subscription, _ = subscribe(receiver.url)
    receiver.answer(answering(status="410 Gone"))
    tell()
    with run_receiver() as other:
        subscribe(other.url, kinds=["webhook.disabled"])
        tell()
        event_source.run()
        [(_, body)] = other.messages
    assert json.loads(body)["data"] == {
        "id": str(subscription.pk),
        "receiver": receiver.url,
        "reason": "The receiver answered 410 Gone.",
    }
    subscription.refresh_from_db()
    assert (subscription.disabled, subscription.disabled_reason) == (
        True, "The receiver answered 410 Gone.",
    )  # fmt: skip
    assert ("failed", 1, "The receiver answered 410.") in results()


@pytest.mark.parametrize("form", ["webhook", "slack"])
@pytest.mark.parametrize(
    "outcome",
    [
        SendingOutcome("The receiver answered 410.", 410),
        SendingOutcome("The receiver answered 503.", 503, retry_after=3_600.0),
    ],
)
def test_a_failure_of_an_earlier_url_neither_disables_nor_pauses_the_present_one(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, results: Results, form: str,
    outcome: SendingOutcome,
) -> None:  # fmt: skip
    subscription, _ = subscribe(f"{receiver.url}/old", form=form)
    tell()
    delivering.dispatch_events()
    [attempt] = delivering._claim(Places())
    assert subscription.edit(url=receiver.url)
    attempt.store(outcome)
    subscription.refresh_from_db()
    found = (subscription.disabled, subscription.failures, subscription.retry_at)
    assert found == (False, 0, None)
    assert results() == [("pending", 1, outcome.error)]
    assert event_source.run() == 1
    assert results() == [("delivered", 2, "")]


def test_a_receiver_that_fails_for_five_days_is_disabled(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, later: Later
) -> None:
    subscription, _ = subscribe(receiver.url)
    receiver.answer(answering(status="500 Oops"))
    tell()
    event_source.run()
    since = timezone.now() - timedelta(days=5, minutes=1)
    Subscription.objects.update(failing_since=since)
    assert later() == 1
    subscription.refresh_from_db()
    assert subscription.disabled
    assert later() == 0

    assert subscription.enable()
    receiver.answer(TAKEN)
    assert later() == 1
    assert Delivery.objects.get(event__kind="key.created").status == "delivered"


def test_an_address_that_has_become_private_is_refused_at_delivery(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, results: Results, settings: Any
) -> None:
    subscribe(receiver.url)
    settings.EGRESS_POLICY = replace(settings.EGRESS_POLICY, allowed_networks=())
    tell()
    event_source.run()
    assert results() == [("pending", 1, "The receiver could not be reached.")]
    assert receiver.server.connections == 0


def test_a_claim_of_a_killed_process_is_made_again(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, results: Results, later: Later
) -> None:
    subscribe(receiver.url)
    tell()
    delivering.dispatch_events()
    [lost] = delivering._claim(Places())
    assert event_source.run() == 0
    assert later() == 1
    assert results() == [("delivered", 2, "")]

    # The process was only slow: its late result does not change the later one.
    lost.store(SendingOutcome("The receiver answered 500.", 500))
    assert results() == [("delivered", 2, "")]


def test_deliveries_stay_for_30_days(subscribe: Subscribe, tell: Tell, receiver: Receiver) -> None:
    subscription, _ = subscribe(receiver.url)
    tell()
    event_source.run()
    old = first_event_id(timezone.now() - KEPT - timedelta(days=1))
    event = Event.objects.create(id=old, kind="key.created", data=KEY, dispatched_at=timezone.now())
    Delivery.objects.create(id=old, subscription=subscription, event=event)
    event_source.run()
    assert Delivery.objects.count() == 1
    assert Event.objects.count() == 1


def test_both_secrets_are_valid_until_the_overlap_is_over(
    subscribe: Subscribe, tell: Tell, receiver: Receiver
) -> None:
    subscription, first = subscribe(receiver.url)
    second = subscription.rotate(overlap=3600).reveal()
    tell()
    event_source.run()
    headers, body = receiver.messages[-1]
    verify(first, headers, body)
    verify(second, headers, body)

    Subscription.objects.update(previous_until=timezone.now())
    tell()
    event_source.run()
    headers, body = receiver.messages[-1]
    verify(second, headers, body)
    with pytest.raises(WebhookVerificationError):
        verify(first, headers, body)
