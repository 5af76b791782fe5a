"""No secret and no key reaches a receiver of events, the log, or the outbox."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import ApiKey
from accounts.webhooks.delivering import event_source
from accounts.webhooks.models import Subscription
from config.events.outbox import Event
from inference.notices.run import find_notices
from tests.support.console import SECRET
from tests.support.factories import Tenant
from tests.support.upstreams.receiving import Mailbox, Receiver


def test_the_canary_is_in_no_message(
    world: dict[str, Any], tenant: Tenant, receiver: Receiver, mailbox: Mailbox,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    # The chat's URL has the canary, as Slack's have a secret.
    chat = f"{receiver.url}/{SECRET}"
    secrets = [SECRET, tenant.api_key, tenant.management_key]
    for form in ("webhook", "slack"):
        _, secret = Subscription.objects.create_subscription(
            organization=None, form=form, url=chat if form == "slack" else receiver.url
        )
        if secret is not None:
            secrets.append(secret.reveal())
    Subscription.objects.create_subscription(
        organization=None, form="email", email="ops@example.com"
    )
    _, key = ApiKey.objects.create_key(workspace=tenant.workspace, name="later")
    secrets.append(key.reveal())
    find_notices()
    event_source.run()

    messages = receiver.messages
    assert len(messages) > 4
    assert mailbox.mails
    shown = [str(messages), str([mail.as_string() for mail in mailbox.mails])]
    shown += [str(list(Event.objects.values())), caplog.text]
    for text in shown:
        for secret in secrets:
            assert secret not in text
