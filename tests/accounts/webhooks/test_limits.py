"""Events beyond the hourly limit are held back, counted, and told by one digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from accounts.webhooks import dispatching
from accounts.webhooks.delivering import event_source
from accounts.webhooks.dispatching import HOURLY
from accounts.webhooks.models import Delivery, Subscription, SubscriptionNotFound
from config.apps import event_kinds
from config.events.outbox import Event, record_event
from tests.support import factories
from tests.support.factories import Tenant
from tests.support.upstreams.receiving import KEY, Receiver

Tell = Callable[..., None]


def subscribe(receiver: Receiver, **fields: Any) -> Subscription:
    made, _ = Subscription.objects.create_subscription(form="slack", url=receiver.url, **fields)
    Event.objects.all().delete()
    return made


def statuses() -> list[str]:
    return list(Delivery.objects.order_by("id").values_list("status", flat=True))


def test_a_storm_is_held_back_and_told_by_one_digest(
    tenant: Tenant, receiver: Receiver, tell: Tell
) -> None:
    subscribe(receiver, organization=tenant.organization)
    for number in range(HOURLY["slack"] + 5):
        tell(str(number), kind="key.created" if number % 2 else "key.revoked")
    event_source.run()
    assert len(receiver.messages) == HOURLY["slack"]
    assert statuses().count("held") == 5
    event_source.run()
    assert len(receiver.messages) == HOURLY["slack"]

    Delivery.objects.filter(status="held").update(created_at=timezone.now() - timedelta(hours=2))
    event_source.run()
    assert json.loads(receiver.messages[-1][1])["text"] == (
        "5 events were held back, because there were too many within an hour."
    )
    digest = Event.objects.get(kind="events.held_back")
    # Events of one millisecond have no order, so any of them may be those beyond the limit.
    assert sum(digest.data["kinds"].values()) == digest.data["count"] == 5
    assert digest.data["kinds"].keys() <= {"key.revoked", "key.created"}
    assert digest.data["organization_id"] == str(tenant.organization.pk)
    assert statuses().count("digested") == 5
    event_source.run()
    assert len(receiver.messages) == HOURLY["slack"] + 1

    held = Delivery.objects.filter(status="digested").first()
    assert held is not None
    held.redeliver()
    event_source.run()
    assert len(receiver.messages) == HOURLY["slack"] + 2


def test_one_organizations_storm_hides_no_others_events_from_operators(
    receiver: Receiver, tell: Tell
) -> None:
    subscribe(receiver, organization=None)
    other = factories.make_tenant("Other")
    Event.objects.all().delete()
    for _ in range(HOURLY["slack"] + 5):
        tell()
    record_event("key.created", organization=other.organization.pk, data={**KEY, "name": "theirs"})
    event_source.run()
    assert len(receiver.messages) == HOURLY["slack"] + 1
    assert any("theirs" in body.decode() for _, body in receiver.messages)


def test_a_storm_of_one_kind_hides_no_other_event_of_the_operator(
    db: None, receiver: Receiver
) -> None:
    """Strangers cause some kinds: every transfer to the operator's address is a deposit."""
    subscribe(receiver, organization=None)
    deposit = dict.fromkeys(event_kinds()["deposit.in_review"].sample, "x")
    for _ in range(HOURLY["slack"] + 5):
        record_event("deposit.in_review", organization=None, data=deposit)
    event_source.run()
    record_event("key.created", organization=None, data={**KEY, "name": "theirs"})
    event_source.run()
    assert len(receiver.messages) == HOURLY["slack"] + 1
    assert any("theirs" in body.decode() for _, body in receiver.messages)


def test_events_without_end_do_not_keep_stored_ones_from_being_sent(
    tenant: Tenant, receiver: Receiver, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While events are dispatched, the organization makes one more, twenty times."""
    subscribe(receiver, organization=tenant.organization)
    find_deliveries, claimed = dispatching._find_deliveries, list[bool]()

    def storm(events: Any) -> Any:
        claimed.append(Delivery.objects.filter(attempts__gt=0).exists())
        if len(claimed) < 20:
            tell()
        return find_deliveries(events)

    monkeypatch.setattr(dispatching, "_find_deliveries", storm)
    tell()
    assert event_source.run() == 20
    most = dispatching._BATCHES
    assert (claimed[:most], claimed[most]) == ([False] * most, True)


def hold(tell: Tell) -> None:
    """Stores so many events that three of them are held back for longer than an hour."""
    for _ in range(HOURLY["slack"] + 3):
        tell()
    event_source.run()
    Delivery.objects.filter(status="held").update(created_at=timezone.now() - timedelta(hours=2))


def test_what_a_disabled_receiver_missed_stays_held_until_it_is_enabled(
    tenant: Tenant, receiver: Receiver, tell: Tell
) -> None:
    row = subscribe(receiver, organization=tenant.organization)
    hold(tell)
    row.disable()
    event_source.run()
    assert statuses().count("held") == 3
    assert not Event.objects.filter(kind="events.held_back").exists()

    row.enable()
    event_source.run()
    assert statuses().count("digested") == 3
    assert Event.objects.get(kind="events.held_back").data["count"] == 3


def test_a_disabled_receiver_hides_no_other_digest(
    tenant: Tenant, receiver: Receiver, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "_BATCH", 1)
    silent = subscribe(receiver, organization=tenant.organization)
    hold(tell)
    silent.disable()
    subscribe(receiver, organization=None)
    hold(tell)
    event_source.run()
    assert Event.objects.filter(kind="events.held_back").count() == 1


def test_a_digest_of_a_deleted_receiver_is_left_out(
    tenant: Tenant, receiver: Receiver, tell: Tell
) -> None:
    row = subscribe(receiver, organization=tenant.organization)
    pk = row.pk
    hold(tell)
    row.remove()
    with pytest.raises(SubscriptionNotFound):
        Delivery.objects.digest(pk, about=tenant.organization.pk)
    assert not Event.objects.filter(kind="events.held_back").exists()
