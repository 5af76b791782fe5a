"""Attempts, their results and new events beside the transitions of people at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from accounts.webhooks import delivering
from accounts.webhooks.delivering import event_source
from accounts.webhooks.models import Delivery, Subscription
from config.events.outbox import Event, record_event
from config.outbound.engine import Places
from config.outbound.sending import SendingOutcome
from tests.support import factories
from tests.support.database.locks import beside, locked, waiting
from tests.support.factories import Tenant
from tests.support.upstreams.receiving import KEY, Receiver, run_receiver, taking_after

Subscribe = Callable[..., tuple[Subscription, str]]
Tell = Callable[..., None]
Wait = Callable[[Callable[[], bool]], None]
Results = Callable[[], list[tuple[str, int, str]]]


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return factories.make_tenant()


def test_a_result_waits_for_the_subscription_before_it_locks_its_delivery(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, eventually: Wait
) -> None:
    """Transitions lock a subscription, then its deliveries; another order would be a deadlock."""
    subscription, _ = subscribe(receiver.url)
    tell()
    delivering.dispatch_events()
    [attempt] = delivering._claim(Places())

    def store() -> None:
        try:
            attempt.store(SendingOutcome("The receiver answered 500.", 500))
        finally:
            connection.close()

    session = connection.copy()
    with ThreadPoolExecutor(1) as threads:
        try:
            session.set_autocommit(False)
            with session.cursor() as cursor:
                cursor.execute(
                    "SELECT 1 FROM accounts_subscription WHERE id = %s FOR NO KEY UPDATE",
                    [subscription.pk],
                )
                stored = threads.submit(store)
                eventually(lambda: waiting() == 1)
                cursor.execute(
                    "SELECT 1 FROM accounts_delivery WHERE id = %s FOR UPDATE NOWAIT",
                    [Delivery.objects.get().pk],
                )
                assert cursor.fetchall() == [(1,)]
        finally:
            session.close()
        stored.result(30)
    assert Delivery.objects.get().error == "The receiver answered 500."
    subscription.refresh_from_db()
    assert subscription.failures == 1


def test_an_event_that_is_sent_again_during_its_attempt_keeps_no_run_from_ending(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, results: Results, eventually: Wait
) -> None:
    """Both attempts are the first one of the delivery, and each takes a place."""
    released = threading.Event()
    subscribe(receiver.url)
    receiver.answer(taking_after(released))
    tell()
    with beside(event_source.run):
        eventually(lambda: len(receiver.messages) == 1)
        Delivery.objects.get().redeliver()
        eventually(lambda: len(receiver.messages) == 2)
        released.set()
    assert results() == [("delivered", 1, "")]
    assert len(set(receiver.ids)) == 1


def test_a_webhook_whose_row_is_locked_delays_no_other_organization(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, eventually: Wait
) -> None:
    """The deletion of a webhook with very many deliveries takes long, for instance."""
    subscription, _ = subscribe(receiver.url)
    other = factories.make_tenant("Other").organization
    theirs = Delivery.objects.for_organization(other.pk).filter(status="delivered")
    row = Subscription.objects.filter(pk=subscription.pk).order_by()
    with run_receiver() as second:
        subscribe(second.url, organization=other)
        tell()
        with beside(event_source.run), locked(row, strength="NO KEY UPDATE"):
            eventually(lambda: waiting() == 1)
            for number in (1, 2):
                record_event("key.created", organization=other.pk, data=KEY)
                eventually(lambda wanted=number: theirs.count() == wanted)  # type: ignore[misc]
    delivery = Delivery.objects.get(subscription=subscription)
    assert (delivery.status, delivery.attempts) == ("delivered", 1)
    assert len(receiver.messages) == 1
    assert len(second.messages) == 2


def test_a_webhook_that_is_deleted_meanwhile_stops_no_event_of_others(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, eventually: Wait
) -> None:
    """The deletion commits when the deliveries of a batch were written, before their commit."""
    gone, _ = subscribe(receiver.url)
    other = factories.make_tenant("Other").organization
    kept, _ = subscribe(receiver.url, organization=other)
    tell()
    record_event("key.created", organization=other.pk, data=KEY)
    session = connection.copy()
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("DELETE FROM accounts_subscription WHERE id = %s", [gone.pk])
            with beside(delivering.dispatch_events) as dispatched:
                eventually(lambda: waiting() == 1)
                session.commit()
            assert dispatched.result() is False
    finally:
        session.close()
    assert Delivery.objects.get().subscription == kept
    assert not Event.objects.filter(dispatched_at=None).exists()
    assert event_source.run() == 1
