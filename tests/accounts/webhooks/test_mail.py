"""Mail to members and operators by a real mail server, and messages to chats."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from accounts.models import Member
from accounts.webhooks.delivering import event_source
from accounts.webhooks.models import Subscription
from config.api.errors import InvalidRequest
from config.clocks.clock import clock
from config.events.outbox import Event
from tests.support import factories
from tests.support.database.snapshots import unchanged
from tests.support.factories import Tenant
from tests.support.governance import make_member
from tests.support.upstreams.receiving import Mailbox, Receiver

Tell = Callable[..., None]
Later = Callable[[], int]
Results = Callable[[], list[tuple[str, int, str]]]


@pytest.fixture
def member(tenant: Tenant) -> Member:
    found = make_member(tenant.organization)
    Event.objects.all().delete()
    return found


def subscribe(**fields: Any) -> Subscription:
    made, secret = Subscription.objects.create_subscription(**{"form": "email", **fields})
    assert secret is None
    Event.objects.all().delete()
    return made


def test_members_and_operators_get_what_they_chose(
    tenant: Tenant, member: Member, mailbox: Mailbox, tell: Tell, results: Results
) -> None:
    subscribe(organization=tenant.organization, member=member, kinds=["key.created"])
    subscribe(organization=None, email="ops@example.com", kinds=["key.revoked"])
    tell()
    tell(kind="key.revoked")
    event_source.run()

    mails = {mail["X-Recipients"]: mail for mail in mailbox.mails}
    assert mails.keys() == {member.email, "ops@example.com"}
    mail = mails[member.email]
    event = Event.objects.get(kind="key.created")
    # A header that is folded before its first word begins with a space.
    subject = mail["Subject"].strip()
    assert subject == "[Causeway] The API key Production (sk-cw-abc…xyz) was created."
    assert mail["From"] == "Causeway <causeway@example.com>"
    assert mail["Message-ID"].startswith(f"<{event.pk}@")
    text = mail.get_content()
    assert "label: sk-cw-abc…xyz" in text
    assert "changes that under Webhooks." in text
    assert f"Organization: {tenant.organization.pk}" in text
    assert [status for status, _, _ in results()] == ["delivered", "delivered"]


def test_a_mail_server_that_refuses_is_asked_again(
    tenant: Tenant, member: Member, mailbox: Mailbox, tell: Tell, results: Results, later: Later
) -> None:
    subscribe(organization=tenant.organization, member=member)
    mailbox.refusal = "451 Try again later, secret-of-the-server"
    tell()
    event_source.run()
    assert results() == [("pending", 1, "The mail server answered 451.")]
    mailbox.refusal = ""
    assert later() == 1
    assert results() == [("delivered", 2, "")]
    assert len(mailbox.mails) == 1


def test_without_a_mail_server_the_log_names_the_setting(
    tenant: Tenant, member: Member, tell: Tell, results: Results, settings: Any
) -> None:
    settings.EMAIL_HOST = ""
    subscribe(organization=tenant.organization, member=member)
    tell()
    event_source.run()
    assert results() == [("pending", 1, "EMAIL_URL is not set, so no mail can be sent.")]


def test_a_server_that_does_not_answer_is_an_attempt(
    tenant: Tenant, member: Member, tell: Tell, results: Results, settings: Any
) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    settings.DEFAULT_FROM_EMAIL = "a@example.com"
    subscribe(organization=tenant.organization, member=member)
    tell()
    event_source.run()
    assert results() == [("pending", 1, "The mail server could not be reached.")]


def test_a_mail_server_that_is_away_for_days_disables_nobody(
    tenant: Tenant, member: Member, mailbox: Mailbox, tell: Tell, later: Later, settings: Any
) -> None:
    """It is the operator's fault; an address that the server refuses for days is its owner's."""
    port, settings.EMAIL_PORT = settings.EMAIL_PORT, 1
    row = subscribe(organization=tenant.organization, member=member)
    tell()
    event_source.run()
    since = clock.now() - timedelta(days=5, minutes=1)
    Subscription.objects.update(failing_since=since)
    assert later() == 1
    row.refresh_from_db()
    assert (row.disabled, row.failures, row.failing_since) == (False, 2, since)

    settings.EMAIL_PORT = port
    assert later() == 1
    row.refresh_from_db()
    assert (row.disabled, row.failures) == (False, 0)
    assert len(mailbox.mails) == 1


def test_an_address_that_is_refused_for_days_is_disabled(
    tenant: Tenant, member: Member, mailbox: Mailbox, tell: Tell, later: Later, results: Results
) -> None:
    row = subscribe(organization=tenant.organization, member=member)
    mailbox.unknown = "550 No such user"
    tell()
    event_source.run()
    assert results() == [("pending", 1, "The mail server refused the address: 550.")]
    Subscription.objects.update(failing_since=clock.now() - timedelta(days=5, minutes=1))
    assert later() == 1
    row.refresh_from_db()
    assert row.disabled
    assert row.disabled_reason == "Every attempt has failed for five days."


def test_a_defect_ends_one_attempt_and_no_other(
    tenant: Tenant, member: Member, receiver: Receiver, tell: Tell, results: Results, settings: Any
) -> None:
    settings.EMAIL_BACKEND = "tests.no_such_backend"
    settings.EMAIL_HOST = "127.0.0.1"
    subscribe(organization=tenant.organization, member=member)
    subscribe(organization=tenant.organization, form="slack", url=receiver.url)
    tell()
    assert event_source.run() == 2
    failed = ("pending", 1, "The service failed to send it.")
    assert sorted(results()) == [("delivered", 1, ""), failed]


def test_a_name_adds_no_header_to_a_mail(
    tenant: Tenant, member: Member, mailbox: Mailbox, tell: Tell
) -> None:
    subscribe(organization=tenant.organization, member=member)
    tell("Prod\r\nBcc: victim@example.com\r\n\r\nHello")
    event_source.run()
    [mail] = mailbox.mails
    assert mail["Bcc"] is None
    assert mail["X-Recipients"] == member.email
    assert "\n" not in mail["Subject"]


def test_mail_of_an_organization_goes_to_its_members_alone(tenant: Tenant, member: Member) -> None:
    other = make_member(factories.make_tenant("Other").organization, email="them@example.com")
    with unchanged():
        for fields in (
            {"organization": tenant.organization, "email": "anybody@example.com"},
            {"organization": tenant.organization, "member": other},
            {"organization": None, "member": member},
            {"organization": None},
        ):
            with pytest.raises(InvalidRequest):
                Subscription.objects.create_subscription(form="email", **fields)


def test_operators_read_the_organization_in_chats_and_mails(
    tenant: Tenant, receiver: Receiver, mailbox: Mailbox, tell: Tell
) -> None:
    subscribe(organization=None, form="slack", url=receiver.url)
    subscribe(organization=None, email="ops@example.com")
    tell()
    event_source.run()
    [(_, body)] = receiver.messages
    text = "Acme: The API key Production (sk-cw-abc…xyz) was created."
    assert json.loads(body) == {"text": text}
    [mail] = mailbox.mails
    assert mail["Subject"].strip() == f"[Causeway] {text}"
    assert f"Organization: Acme, {tenant.organization.pk}" in mail.get_content()


def test_a_chat_gets_one_line_in_which_names_are_text(
    tenant: Tenant, receiver: Receiver, tell: Tell
) -> None:
    subscribe(organization=tenant.organization, form="slack", url=receiver.url)
    tell("<!channel> & <https://evil.example|here>")
    tell("@all [x](evil.example) \u202ecod.exe\u2066, www.evil.example/a@b 12:30 gpt-4.1")
    event_source.run()
    [(headers, _), (_, _)] = receiver.messages
    assert "webhook-signature" not in headers
    # An invisible space ends what a chat would take for a mention or a link.
    shown = [json.loads(body)["text"].replace("\u200b", "|") for _, body in receiver.messages]
    names = (
        "&lt;!channel&gt; &amp; &lt;https:|//evil.|example|here&gt;",
        "@|all [x]|(evil.|example) cod.|exe, www.|evil.|example/a@|b 12:30 gpt-4.1",
    )
    assert sorted(shown) == sorted(
        f"The API key {name} (sk-cw-abc…xyz) was created." for name in names
    )
