"""Events beyond the hourly limit are held back, counted, and told by one digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.utils import timezone

from accounts.webhooks.delivering import deliver_events
from accounts.webhooks.dispatching import HOURLY
from accounts.webhooks.models import Delivery, Subscription
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
    deliver_events()
    assert len(receiver.messages) == HOURLY["slack"]
    assert statuses().count("held") == 5
    deliver_events()
    assert len(receiver.messages) == HOURLY["slack"]

    Delivery.objects.filter(status="held").update(created_at=timezone.now() - timedelta(hours=2))
    deliver_events()
    assert json.loads(receiver.messages[-1][1])["text"] == (
        "5 events were held back, because there were too many within an hour."
    )
    digest = Event.objects.get(kind="events.held_back")
    # Events of one millisecond have no order, so any of them may be those beyond the limit.
    assert sum(digest.data["kinds"].values()) == digest.data["count"] == 5
    assert digest.data["kinds"].keys() <= {"key.revoked", "key.created"}
    assert digest.data["organization_id"] == str(tenant.organization.pk)
    assert statuses().count("digested") == 5
    deliver_events()
    assert len(receiver.messages) == HOURLY["slack"] + 1

    held = Delivery.objects.filter(status="digested").first()
    assert held is not None
    held.redeliver()
    deliver_events()
    assert len(receiver.messages) == HOURLY["slack"] + 2


def test_one_organizations_storm_hides_no_others_events_from_operators(
    tenant: Tenant, receiver: Receiver, tell: Tell
) -> None:
    subscribe(receiver, organization=None)
    other = factories.make_tenant("Other")
    Event.objects.all().delete()
    for _ in range(HOURLY["slack"] + 5):
        tell()
    record_event("key.created", organization=other.organization.pk, data={**KEY, "name": "theirs"})
    deliver_events()
    assert len(receiver.messages) == HOURLY["slack"] + 1
    assert any("theirs" in body.decode() for _, body in receiver.messages)
