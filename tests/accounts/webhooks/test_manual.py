"""The limit of tests and redeliveries: exact, of the organization, and refused by name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from rest_framework.test import APIClient

from accounts.models import ApiKey, Delivery, Organization
from accounts.webhooks.manual import MOST_IN_A_MINUTE, ManualSends, TooManySends
from accounts.webhooks.models import Subscription
from config.audit.entries import AuditEntry
from config.clocks.clock import clock
from tests.support import factories
from tests.support.console import messages_of
from tests.support.database.snapshots import unchanged
from tests.support.factories import Tenant
from tests.support.operators.four_eyes import press

ROUTE = "/api/v1/webhooks"
URL = "https://hooks.example.com/causeway"


def count_as(organization: Organization, count: int, *, minutes: int = 1) -> None:
    """Stores a count for a minute of the clock; for a minute to come it holds until its end."""
    minute = clock.now().replace(second=0, microsecond=0) + timedelta(minutes=minutes)
    ManualSends.objects.update_or_create(
        organization=organization, defaults={"minute": minute, "count": count}
    )


def make(organization: Organization | None) -> Subscription:
    made, _ = Subscription.objects.create_subscription(
        organization=organization, form="webhook", url=URL
    )
    return made


def create(api: APIClient) -> str:
    answer = api.post(ROUTE, {"url": URL}, format="json")
    assert answer.status_code == 201
    return f"{ROUTE}/{answer.json()['data']['id']}"


def test_an_organization_sends_at_most_60_tests_and_redeliveries_a_minute(tenant: Tenant) -> None:
    api, other = factories.client(tenant.management_key), factories.make_tenant("Other")
    address = create(api)
    sent = api.post(f"{address}/test")
    again = f"{address}/deliveries/{sent.json()['data']['id']}/redeliver"
    count_as(tenant.organization, MOST_IN_A_MINUTE - 2)
    assert [api.post(f"{address}/test").status_code, api.post(again).status_code] == [202, 202]

    with unchanged():
        for refused in (api.post(f"{address}/test"), api.post(again)):
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["Retry-After"]) <= 60
            assert refused.json()["error"]["metadata"]["error_type"] == "rate_limit_exceeded"
            said = refused.json()["error"]["message"]
            assert "60 tests and redeliveries of webhooks a minute" in said

    # A webhook that is deleted takes no count with it, and other organizations have their own.
    assert api.delete(address).status_code == 200
    assert api.post(f"{create(api)}/test").status_code == 429
    theirs = factories.client(other.management_key)
    assert theirs.post(f"{create(theirs)}/test").status_code == 202


def test_tests_and_redeliveries_are_in_the_audit_log(operator: Client, tenant: Tenant) -> None:
    api = factories.client(tenant.management_key)
    address = create(api)
    sent = api.post(f"{address}/test").json()["data"]["id"]
    # What `work` writes has no actor.
    Delivery.objects.update(attempts=3)
    assert api.post(f"{address}/deliveries/{sent}/redeliver").status_code == 202
    Delivery.objects.update(status="failed")
    press(operator, Delivery.objects.get(), "redeliver")
    key = f"key {ApiKey.objects.get(name='management').label}"
    entries = AuditEntry.objects.filter(kind="accounts.delivery").order_by("id")
    assert [(each.actor, each.action, each.change) for each in entries] == [
        (key, "POST /api/v1/webhooks/{pk}/test", "created"),
        (key, "POST /api/v1/webhooks/{pk}/deliveries/{delivery}/redeliver", "changed"),
        ("operator operator", "admin: accounts_delivery_redeliver", "changed"),
    ]
    assert {(each.object_id, each.organization_id) for each in entries} == {
        (sent, tenant.organization.pk)
    }


def test_a_test_that_is_refused_otherwise_does_not_count(tenant: Tenant) -> None:
    api = factories.client(tenant.management_key)
    address = create(api)
    api.patch(address, {"disabled": True}, format="json")
    assert api.post(f"{address}/test").status_code == 409
    assert not ManualSends.objects.exists()


@pytest.mark.parametrize("minutes", [-1, -60, 2, 60])
def test_another_minute_begins_anew(tenant: Tenant, minutes: int) -> None:
    """A stored minute that is far ahead comes from a clock that was set back."""
    row = make(tenant.organization)
    # The minute may end between the two statements; two minutes ahead it would then be one.
    count_as(tenant.organization, MOST_IN_A_MINUTE, minutes=minutes + (minutes > 0))
    row.send_test()
    stored = ManualSends.objects.get()
    assert stored.count == 1
    assert stored.minute <= clock.now()


def test_operators_send_again_without_a_limit(operator: Client, tenant: Tenant) -> None:
    row = make(tenant.organization)
    delivery = row.send_test()
    count_as(tenant.organization, MOST_IN_A_MINUTE)
    delivery.redeliver(by_operator=True)
    with unchanged(), pytest.raises(TooManySends):
        delivery.redeliver()

    refused = press(operator, row, "send_test")
    assert any("60 tests and redeliveries" in text for text in messages_of(refused)), refused.text
    # The receivers of the operators have no limit.
    make(None).send_test()
    assert ManualSends.objects.get().count == MOST_IN_A_MINUTE


@pytest.mark.django_db(transaction=True)
def test_the_limit_is_exact_under_calls_at_once(tenant: Tenant) -> None:
    row = make(tenant.organization)
    count_as(tenant.organization, MOST_IN_A_MINUTE - 3)

    def send(number: int) -> bool:
        try:
            Subscription.objects.get(pk=row.pk).send_test()
        except TooManySends:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(8) as executor:
        assert sorted(executor.map(send, range(8))) == [False] * 5 + [True] * 3
    assert row.deliveries.count() == 3
