"""A result of an attempt and a transition of a person wait for each other, and both are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from accounts.webhooks import delivering, sending
from accounts.webhooks.models import Delivery, Subscription
from tests.support import factories
from tests.support.database.locks import waiting
from tests.support.factories import Tenant
from tests.support.upstreams.receiving import Receiver

Subscribe = Callable[..., tuple[Subscription, str]]
Tell = Callable[..., None]
Wait = Callable[[Callable[[], bool]], None]


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
    [(_, place)] = list(delivering._claim(Counter()))

    def store() -> None:
        try:
            delivering._store(place, sending.Outcome("The receiver answered 500.", 500))
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
                    [place.due.id],
                )
                assert cursor.fetchall() == [(1,)]
        finally:
            session.close()
        stored.result(30)
    assert Delivery.objects.get().error == "The receiver answered 500."
    subscription.refresh_from_db()
    assert subscription.failures == 1
