"""Receivers of events, and the duty that delivers to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from accounts.webhooks.delivering import event_source
from accounts.webhooks.models import Delivery, Subscription
from config.events.outbox import Event, record_event
from tests.support.factories import Tenant
from tests.support.upstreams.receiving import KEY, Mailbox, Receiver, run_mail_server, run_receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver() as running:
        yield running


@pytest.fixture
def mailbox(settings: Any) -> Iterator[Mailbox]:
    """A mail server that the settings name."""
    with run_mail_server() as box:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", box.port
        settings.DEFAULT_FROM_EMAIL = "Causeway <causeway@example.com>"
        yield box


@pytest.fixture
def subscribe(tenant: Tenant) -> Callable[..., tuple[Subscription, str]]:
    """Creates a webhook of the tenant, and deletes the events of its creation."""

    def create(url: str, **fields: Any) -> tuple[Subscription, str]:
        fields = {"organization": tenant.organization, "form": "webhook", **fields}
        made, secret = Subscription.objects.create_subscription(url=url, **fields)
        Event.objects.all().delete()
        return made, "" if secret is None else secret.reveal()

    return create


@pytest.fixture
def tell(tenant: Tenant) -> Callable[..., None]:
    """Stores an event of the tenant."""

    def record(name: str = "Production", kind: str = "key.created") -> None:
        data = {**KEY, "name": name}
        record_event(kind, organization=tenant.organization.pk, data=data)

    return record


@pytest.fixture
def later() -> Callable[[], int]:
    """Lets all pauses and leases pass, and delivers; returns the number of attempts."""

    def run() -> int:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE accounts_delivery SET next_attempt_at = now()")
            cursor.execute("UPDATE accounts_subscription SET retry_at = NULL")
        return event_source.run()

    return run


@pytest.fixture
def results() -> Callable[[], list[tuple[str, int, str]]]:
    """Returns the status, the attempts and the error of each delivery, oldest first."""

    def read() -> list[tuple[str, int, str]]:
        rows = Delivery.objects.order_by("id").values_list("status", "attempts", "error")
        return [(status, attempts, error) for status, attempts, error in rows]

    return read
