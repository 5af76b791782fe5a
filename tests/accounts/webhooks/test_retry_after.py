"""The next attempt after a receiver has asked for a time with ``Retry-After``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from django.db import connection

from accounts.webhooks import delivering
from accounts.webhooks.delivering import event_source
from accounts.webhooks.models import Delivery, Subscription
from config.events.outbox import record_event
from config.outbound.engine import Places
from config.outbound.sending import SendingOutcome
from tests.support import factories
from tests.support.upstreams.receiving import KEY, TAKEN, Receiver, run_receiver
from tests.support.upstreams.tls import answering

Subscribe = Callable[..., tuple[Subscription, str]]
Tell = Callable[..., None]
Later = Callable[[], int]
Results = Callable[[], list[tuple[str, int, str]]]

SENT, TEN_MINUTES_LATER = "Tue, 14 Jul 2026 03:33:20 GMT", "Tue, 14 Jul 2026 03:43:20 GMT"
HOUR = 3_600


def database_now() -> datetime:
    """Returns the database's time; ``now()`` would be when the test began."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [now] = cursor.fetchone()
    assert isinstance(now, datetime)
    return now


def deliver() -> tuple[datetime, datetime]:
    """Makes one attempt; returns the times before and after it."""
    before = database_now()
    assert event_source.run() == 1
    return before, database_now()


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        ("429 Slow down", ["Retry-After: 120"], 120),
        ("503 Busy", ["Retry-After: 90.5"], 90.5),
        ("500 Oops", ["retry-after: 30"], 30),
        ("503 Busy", [f"Retry-After: {TEN_MINUTES_LATER}", f"Date: {SENT}"], 600),
        ("503 Busy", ["Retry-After: 3600"], HOUR),
        ("429 Slow down", ["Retry-After: 3601"], HOUR),
        ("429 Slow down", ["Retry-After: 999999999999999"], HOUR),
        ("503 Busy", ["Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"], HOUR),
    ],
)
def test_nothing_is_sent_before_the_time_that_a_receiver_asks_for_up_to_an_hour(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, results: Results, status: str,
    headers: list[str], seconds: float,
) -> None:  # fmt: skip
    subscription, _ = subscribe(receiver.url)
    receiver.answer(answering(status=status, headers=tuple(headers)))
    tell()
    before, after = deliver()
    wait = timedelta(seconds=seconds)
    assert before + wait <= Delivery.objects.get().next_attempt_at <= after + wait
    subscription.refresh_from_db()
    assert subscription.retry_at is not None
    assert before + wait <= subscription.retry_at <= after + wait

    tell("Other")
    assert event_source.run() == 0, "another event waits for the receiver too"
    assert len(receiver.messages) == 1

    receiver.answer(TAKEN)
    Delivery.objects.get(attempts=1).redeliver()
    assert event_source.run() == 2
    assert {status for status, _, _ in results()} == {"delivered"}


@pytest.mark.parametrize(
    "text",
    ["", "0", "1", "-9", "soon", "1e9", "inf", "nan", "9" * 16, SENT.replace("2026", "1999")],
)
def test_a_wait_that_is_short_or_says_nothing_leaves_the_pause_of_the_service(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, later: Later, text: str
) -> None:
    subscription, _ = subscribe(receiver.url)
    receiver.answer(answering(status="429 Slow down", headers=(f"Retry-After: {text}",)))
    tell()
    before, after = deliver()
    [delivery] = Delivery.objects.all()
    assert before + timedelta(seconds=4) <= delivery.next_attempt_at
    assert delivery.next_attempt_at <= after + timedelta(seconds=6)
    subscription.refresh_from_db()
    assert subscription.retry_at is not None
    assert before + timedelta(seconds=2) <= subscription.retry_at <= after + timedelta(seconds=2)

    Delivery.objects.update(attempts=9)
    before = database_now()
    assert later() == 1
    [delivery] = Delivery.objects.all()
    assert delivery.next_attempt_at >= before + timedelta(seconds=0.8 * 86_400)


def test_an_answer_of_success_asks_for_nothing(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, results: Results
) -> None:
    subscription, _ = subscribe(receiver.url)
    receiver.answer(answering(b"ok", headers=("Retry-After: 3600",)))
    tell()
    deliver()
    assert results() == [("delivered", 1, "")]
    subscription.refresh_from_db()
    assert subscription.retry_at is None
    tell()
    assert event_source.run() == 1


def test_another_failure_does_not_shorten_what_a_receiver_has_asked_for(
    subscribe: Subscribe, tell: Tell, receiver: Receiver
) -> None:
    """Two attempts of a subscription run at once; the second result comes without a header."""
    subscription, _ = subscribe(receiver.url)
    tell()
    tell()
    delivering.dispatch_events()
    attempts = list(delivering._claim(Places()))
    assert len(attempts) == 2
    busy = SendingOutcome("The receiver answered 429.", 429, retry_after=600.0)
    attempts[0].store(busy)
    subscription.refresh_from_db()
    asked = subscription.retry_at
    attempts[1].store(SendingOutcome("The receiver answered 500.", 500))
    subscription.refresh_from_db()
    assert (subscription.retry_at, subscription.failures) == (asked, 2)


def test_the_wish_of_a_receiver_binds_its_own_subscription_alone(
    subscribe: Subscribe, tell: Tell, receiver: Receiver
) -> None:
    """Two organizations have the same receiver, and the first one has another receiver besides."""
    other = factories.make_tenant("Other")
    data = {**KEY, "name": "theirs"}
    busy = answering(status="429 Slow down", headers=("Retry-After: 3600",))
    with run_receiver() as second:
        subscribe(receiver.url)
        receiver.answer(busy)
        tell()
        deliver()
        receiver.answer(TAKEN)
        subscribe(second.url)
        subscribe(receiver.url, organization=other.organization)
        tell()
        record_event("key.created", organization=other.organization.pk, data=data)
        assert event_source.run() == 2
        assert len(second.messages) == 1
    assert len(receiver.messages) == 2


def test_a_receiver_that_always_asks_for_more_is_given_up_as_any_other(
    subscribe: Subscribe, tell: Tell, receiver: Receiver, later: Later, results: Results
) -> None:
    subscribe(receiver.url)
    receiver.answer(answering(status="429 Slow down", headers=("Retry-After: 999999999",)))
    tell()
    deliver()
    for pause in delivering._PAUSES:
        [delivery] = Delivery.objects.all()
        longest = timedelta(seconds=max(1.2 * pause, HOUR))
        assert delivery.next_attempt_at <= database_now() + longest
        assert later() == 1
    assert results() == [("failed", 11, "The receiver answered 429.")]
    assert later() == 0


def test_what_a_receiver_asked_for_does_not_bind_the_one_that_takes_its_place(
    subscribe: Subscribe, tell: Tell, receiver: Receiver
) -> None:
    """The failures of the old one do not disable the new one, and its duration is forgotten."""
    subscription, _ = subscribe(receiver.url)
    receiver.answer(answering(status="503 Busy", headers=("Retry-After: 3600",)))
    tell()
    deliver()
    Subscription.objects.update(failing_since=database_now() - timedelta(days=6), mean_ms=9_000)
    subscription.edit(url=subscription.url, name="Renamed")
    assert subscription.failures == 1
    assert event_source.run() == 0

    with run_receiver(answering(status="500 Oops")) as new:
        assert subscription.edit(url=new.url)
        tell()
        deliver()
        assert len(new.messages) == 1
    subscription.refresh_from_db()
    assert (subscription.failures, subscription.disabled) == (1, False)
    assert subscription.mean_ms < 9_000 * 3 // 4
    assert len(receiver.messages) == 1
