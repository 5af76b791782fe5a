"""The pages of subscriptions and deliveries: what operators add, see and send again."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client

from accounts.webhooks.delivering import event_source
from accounts.webhooks.models import Delivery, Subscription
from config.apps import Role
from config.clocks.clock import clock
from config.credentials import Secret
from config.events.outbox import Event
from tests.support.console import listing, messages_of, page
from tests.support.database.snapshots import unchanged
from tests.support.factories import Tenant
from tests.support.governance import make_member
from tests.support.operators.four_eyes import press, sign_in
from tests.support.upstreams.receiving import Receiver, verify

FORM: dict[str, Any] = {
    "organization": "", "form": "webhook", "name": "", "url": "", "email": "", "member": "",
}  # fmt: skip


def add(operator: Client, **fields: Any) -> Any:
    return operator.post(listing(Subscription, "add"), {**FORM, **fields}, follow=True)


def make(tenant: Tenant, **fields: Any) -> tuple[Subscription, Secret | None]:
    return Subscription.objects.create_subscription(organization=tenant.organization, **fields)


def secret_of(shown: Any) -> str:
    """Returns the secret on a page that no cache and no message keeps."""
    assert "no-store" in shown["Cache-Control"]
    assert not shown.redirect_chain
    [secret] = re.findall(r"whsec_[0-9A-Za-z+/=]+", html.unescape(shown.content.decode()))
    return str(secret)


def test_an_operator_adds_a_webhook_tests_it_and_sends_the_test_again(
    operator: Client, tenant: Tenant, receiver: Receiver
) -> None:
    Event.objects.all().delete()
    shown = add(operator, organization=str(tenant.organization.pk), url=receiver.url)
    row = Subscription.objects.get()
    secret = secret_of(shown)
    assert "whsec_" not in operator.get(page(row)).content.decode()

    press(operator, row, "send_test")
    event_source.run()
    headers, body = receiver.messages[-1]
    assert verify(secret, headers, body)["type"] == "webhook.test"

    delivery = Delivery.objects.get()
    log = operator.get(listing(Delivery), {"organization__id__exact": tenant.organization.pk})
    assert "webhook.test" in log.content.decode()
    assert receiver.url in operator.get(page(delivery)).content.decode()
    press(operator, delivery, "redeliver")
    event_source.run()
    assert receiver.ids == [str(delivery.event_id)] * 2

    shown = press(operator, row, "rotate", overlap="0")
    assert secret_of(shown) != secret
    assert "whsec_" not in str(operator.cookies)
    press(operator, row, "disable")
    assert Subscription.objects.get().disabled
    shown = press(operator, delivery, "redeliver")
    assert any("is disabled" in text for text in messages_of(shown))
    press(operator, row, "enable")
    press(operator, row, "remove")
    assert not Subscription.objects.exists()


def test_an_operator_changes_the_url_of_a_webhook(
    operator: Client, tenant: Tenant, receiver: Receiver
) -> None:
    row, secret = make(tenant, form="webhook", url="https://hooks.example.com/a")
    assert secret is not None
    Event.objects.all().delete()
    shown = press(operator, row, "move", url="http://hooks.example.com")
    assert any("must begin with https" in text for text in messages_of(shown))
    assert Subscription.objects.get().url == "https://hooks.example.com/a"

    press(operator, row, "move", url=receiver.url)
    row.send_test()
    event_source.run()
    headers, body = receiver.messages[-1]
    assert verify(secret.reveal(), headers, body)["type"] == "webhook.test"
    shown = press(operator, row, "move", url=receiver.url)
    assert messages_of(shown) == ["Events went to this URL already."]


def test_a_page_offers_what_its_receiver_can_do(operator: Client, tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    rows = [
        make(tenant, **fields)[0]
        for fields in (
            {"form": "webhook", "url": "https://hooks.example.com/a"},
            {"form": "slack", "url": "https://hooks.example.com/a"},
            {"form": "email", "member": member},
        )
    ]
    names = ("send_test", "move", "rotate", "enable", "disable", "remove")

    def offered(row: Subscription) -> list[str]:
        text = operator.get(page(row)).content.decode()
        return [name for name in names if page(row, name) in text]

    assert [offered(row) for row in rows] == [
        ["send_test", "move", "rotate", "disable", "remove"],
        ["send_test", "move", "disable", "remove"],
        ["send_test", "disable", "remove"],
    ]
    rows[0].disable()
    assert offered(rows[0]) == ["move", "rotate", "enable", "remove"]


def test_kinds_are_chosen_and_changed(operator: Client, tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    owner = str(tenant.organization.pk)
    add(operator, organization=owner, form="email", member=str(member.pk), kinds=["key.created"])
    row = Subscription.objects.get()
    assert (row.kinds, row.receiver) == (["key.created"], member.email)
    operator.post(page(row), {"name": "Keys", "kinds": ["key.revoked", "balance.low"]})
    row.refresh_from_db()
    assert (row.name, row.kinds) == ("Keys", ["key.revoked", "balance.low"])
    operator.post(page(row), {"name": "Keys"})
    row.refresh_from_db()
    assert row.kinds is None


def test_the_form_describes_each_kind_and_the_list_names_the_organization(
    operator: Client, tenant: Tenant
) -> None:
    form = operator.get(listing(Subscription, "add")).content.decode()
    assert "balance.low: A balance is below the operator&#x27;s limit" in form
    shown = operator.get(listing(Event)).content.decode()
    assert tenant.organization.name in shown
    assert str(tenant.organization.pk) not in shown


def test_operators_have_receivers_of_their_own(operator: Client) -> None:
    add(operator, form="email", email="ops@example.com", kinds=["grant.waiting"])
    row = Subscription.objects.get()
    assert (row.organization, row.receiver) == (None, "ops@example.com")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"url": "http://hooks.example.com"}, "must begin with https"),
        ({"url": "https://127.0.0.1.nip.example/?x=1"}, "query"),
        ({"form": "email", "email": "x@example.com"}, "one of its members"),
        ({"url": "https://hooks.example.com", "email": "x@example.com"},
         "Leave it empty for the form webhook."),
        ({"form": "email", "email": "x@example.com", "url": "https://hooks.example.com"},
         "Leave it empty for the form email."),
        ({"url": "https://hooks.example.com", "kinds": ["grant.waiting"]}, "not get grant"),
    ],
)  # fmt: skip
def test_a_refusal_is_shown_and_changes_nothing(
    operator: Client, tenant: Tenant, fields: dict[str, Any], text: str
) -> None:
    with unchanged():
        shown = add(operator, organization=str(tenant.organization.pk), **fields)
    assert text in shown.content.decode()


@pytest.fixture(params=["new installation", "roles of an earlier release"])
def support(db: None, request: pytest.FixtureRequest) -> Client:
    """Returns a browser of an operator with the role Support, whose group may be an older one."""
    client = sign_in("sue", Role.SUPPORT)
    if request.param == "roles of an earlier release":
        added = Permission.objects.get(codename="add_subscription")
        Group.objects.get(name=Role.SUPPORT).permissions.add(added)
    return client


def test_support_makes_no_feed(support: Client, tenant: Tenant) -> None:
    member = make_member(tenant.organization)
    own = str(tenant.organization.pk)
    with unchanged():
        for fields in (
            {"url": "https://listener.example/all"},
            {"organization": own, "url": "https://listener.example/one"},
            {"form": "slack", "organization": own, "url": "https://listener.example/one"},
            {"form": "email", "email": "sue@example.com"},
            {"form": "email", "organization": own, "member": str(member.pk)},
        ):
            shown = add(support, **fields)
            assert shown.status_code == 403
            assert "whsec_" not in shown.content.decode()


def test_support_changes_no_url_and_rotates_without_seeing_the_secret(
    support: Client, tenant: Tenant, receiver: Receiver
) -> None:
    row, old = make(tenant, form="webhook", url=receiver.url)
    assert old is not None
    with unchanged():
        assert page(row, "move") not in support.get(page(row)).content.decode()
        assert press(support, row, "move", url="https://listener.example").status_code == 403
        support.post(
            page(row), {"name": "", "url": "https://listener.example", "email": "sue@x.test"}
        )

    shown = press(support, row, "rotate", overlap="3600")
    assert messages_of(shown)[-1].startswith("The secret is replaced. You may not see it.")
    row.refresh_from_db()
    new, previous = (each.reveal() for each in row.signing_secrets(clock.now()))
    assert previous == old.reveal() != new
    assert "whsec_" not in shown.content.decode()


def test_support_keeps_the_address_of_a_member_who_gets_mail(
    support: Client, operator: Client, tenant: Tenant
) -> None:
    member = make_member(tenant.organization)
    form = {"email": "sue@example.com", "first_name": "", "last_name": "", "role": member.role}
    make(tenant, form="email", member=member)
    kept = member.email
    support.post(page(member), form)
    member.refresh_from_db()
    assert member.email == kept
    operator.post(page(member), form)
    member.refresh_from_db()
    assert member.email == "sue@example.com"
