"""The source of events: claims deliveries that are due, and stores the results of attempts.

A delivery is claimed for the length of a lease by the database's clock, and its result is stored
after the attempt: a process that is killed loses none, and may send one twice.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from django.db import connection
from prometheus_client import Counter

from accounts.models.organizations import Organization
from accounts.webhooks import signing
from accounts.webhooks.dispatching import dispatch_events, send_digests
from accounts.webhooks.messages import WebhookMessage, render_chat, render_mail, render_webhook
from accounts.webhooks.models import Delivery, Subscription, SubscriptionNotFound
from config.clocks.clock import clock
from config.credentials import Secret
from config.events.outbox import KEPT, Event, clear_events, first_event_id
from config.outbound import engine
from config.outbound.engine import (
    SLOW_MS,
    DeliveryAttempt,
    DeliveryAttempts,
    Limits,
    Place,
    Places,
    Source,
)
from config.outbound.sending import SendingOutcome, mail, post
from config.secrets import DecryptionFailed

logger = logging.getLogger("causeway.work")

_DELIVERIES: Final = Counter(
    "causeway_deliveries_total", "Attempts to deliver an event, by form and result.",
    ("form", "result"),
)  # fmt: skip
# Many organizations may have the same host, for instance that of a chat. All mails have the same
# one: the mail server of the settings.
LIMITS: Final = Limits(total=32, slow=16, organization=4, receiver=2, host=12, slow_host=4)
# Seconds before each attempt after the first; a fifth is added or subtracted. In all three days.
_PAUSES: Final = (5, 60, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 64_800, 86_400)
# A receiver that fails gets nothing for two seconds, then four, and so on up to five minutes.
_LONGEST_PAUSE: Final = 300
# A receiver that asks for a longer time with ``Retry-After`` is obeyed for an hour.
_MOST_ASKED: Final = 3_600.0
_DISABLED_AFTER: Final = timedelta(days=5)
# A smaller change of the average is not stored: successes of a quick receiver write nothing of it.
_STORED_CHANGE_MS: Final = 50
_BATCH: Final = 5_000
_FOUND: Final = 1_000

# The subscriptions with pending deliveries are found by steps in the index: the cost depends on
# their number, not on the number of deliveries that wait for one of them.
# Within a transaction ``now()`` is its beginning, when what it has stored was not due yet.
_NOW: Final = "statement_timestamp()"
_FIND_DUE: Final = """
WITH RECURSIVE waiting AS (
    (SELECT subscription_id FROM accounts_delivery WHERE status = 'pending'
     ORDER BY subscription_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.subscription_id FROM accounts_delivery d
            WHERE d.status = 'pending' AND d.subscription_id > w.subscription_id
            ORDER BY d.subscription_id LIMIT 1)
    FROM waiting w WHERE w.subscription_id IS NOT NULL
)
SELECT d.id, s.id, s.organization_id, s.url, s.failures > 0 OR s.mean_ms > %(slow)s AS is_slow
FROM waiting w
JOIN accounts_subscription s ON s.id = w.subscription_id
CROSS JOIN LATERAL (
    SELECT id, next_attempt_at FROM accounts_delivery
    WHERE subscription_id = s.id AND status = 'pending' AND next_attempt_at <= {now}
    ORDER BY next_attempt_at LIMIT %(each)s
) d
WHERE NOT s.disabled AND (s.retry_at IS NULL OR s.retry_at <= {now})
    AND (s.organization_id IS NULL OR s.organization_id <> ALL(%(full)s::uuid[]))
ORDER BY is_slow, d.next_attempt_at
LIMIT %(limit)s
""".replace("{now}", _NOW)
_CLAIM: Final = """
UPDATE accounts_delivery SET
    attempts = attempts + 1, next_attempt_at = {now} + make_interval(secs => %(lease)s)
WHERE id IN (
    SELECT id FROM accounts_delivery
    WHERE id = ANY(%(ids)s) AND status = 'pending' AND next_attempt_at <= {now}
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id, attempts
""".replace("{now}", _NOW)
# ``attempts`` is compared, so that a process whose lease is over overwrites no later result. The
# subscription is locked before its delivery, as every transition does. If it has another URL than
# the attempt had, a failure says nothing of it: the event goes there, and nothing else changes.
_STORE: Final = """
WITH locked AS (
    SELECT id, url = %(url)s AND (form <> 'slack' OR sealed = %(sealed)s) AS is_same
    FROM accounts_subscription WHERE id = %(subscription)s FOR NO KEY UPDATE
),
ended AS (
    UPDATE accounts_delivery d SET
        status = CASE WHEN %(failed)s AND NOT locked.is_same THEN 'pending' ELSE %(status)s END,
        response_status = %(response)s, error = %(error)s, duration_ms = %(duration)s,
        next_attempt_at = {now}
            + make_interval(secs => CASE WHEN locked.is_same THEN %(pause)s ELSE 0 END),
        delivered_at = CASE WHEN %(status)s = 'delivered' THEN {now} END
    FROM locked
    WHERE d.id = %(id)s AND d.subscription_id = locked.id
        AND d.attempts = %(attempts)s AND d.status = 'pending'
    RETURNING d.subscription_id, locked.is_same
)
UPDATE accounts_subscription s SET
    failures = CASE WHEN %(failed)s THEN s.failures + 1 ELSE 0 END,
    failing_since = CASE WHEN %(failed)s THEN coalesce(s.failing_since, {now}) END,
    retry_at = CASE WHEN %(failed)s THEN greatest(s.retry_at, {now} + make_interval(secs =>
        greatest(least(2 ^ least(s.failures + 1, 20), %(longest)s), %(asked)s))) END,
    mean_ms = (s.mean_ms * 3 + %(duration)s) / 4
FROM ended
WHERE s.id = ended.subscription_id AND ended.is_same AND (
    %(failed)s OR s.failures > 0 OR abs(%(duration)s - s.mean_ms) / 4 >= %(change)s
)
RETURNING s.failing_since
""".replace("{now}", _NOW)


class _Due(NamedTuple):
    """A delivery that may be claimed, with what bounds how many attempts run at once."""

    id: UUID
    subscription: UUID
    organization: UUID | None
    url: str
    is_slow: bool

    def places(self) -> tuple[Place, ...]:
        """Returns the bulkheads that the attempt takes a place in."""
        host = urlsplit(self.url).hostname
        return LIMITS.places(self.subscription, self.organization, host, is_slow=self.is_slow)


class EventSource(Source):
    """Events for subscriptions; a run counts its attempts."""

    duty = "deliver_events"

    def begin_run(self) -> None:
        _clear()
        send_digests()

    def begin_due(self, attempts: DeliveryAttempts) -> bool:
        has_more = dispatch_events()
        for attempt in _claim(attempts.taken):
            attempts.begin(attempt)
        return has_more


event_source: Final = EventSource()


def _claim(taken: Places) -> Iterator[DeliveryAttempt]:
    """Claims due deliveries as far as there are places; yields an attempt for each."""
    chosen = _choose(_find_due(taken), Places(taken)) if taken["all"] < LIMITS.total else {}
    if not chosen:
        return
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, {"ids": list(chosen), "lease": engine.LEASE_SECONDS})
        counts: dict[UUID, int] = dict(cursor.fetchall())
    event_of = dict(Delivery.objects.filter(pk__in=counts).values_list("pk", "event_id"))
    subscriptions = Subscription.objects.select_related("member").in_bulk(
        list({chosen[pk].subscription for pk in counts})
    )
    events = Event.objects.in_bulk(list(event_of.values()))
    owners = {each.organization_id for each in events.values() if each.organization_id is not None}
    names = dict(Organization.objects.filter(pk__in=owners).values_list("pk", "name"))
    for pk, due in chosen.items():
        subscription = subscriptions.get(due.subscription)
        event = events.get(event_of.get(pk))
        if pk not in counts or subscription is None or event is None:
            continue  # somebody else has claimed it, or what it needs was deleted meanwhile
        send = _prepare(subscription, event, names)
        store = partial(_store, due, counts[pk], subscription)
        is_mail = subscription.form == Subscription.Form.EMAIL
        yield DeliveryAttempt(f"delivery {pk}", due.places(), send, store, is_mail)


def _find_due(taken: Places) -> list[_Due]:
    """Returns deliveries that are due, but those of organizations that have all of their places.

    The statement leaves those out, so that their backlog does not fill what it returns.
    """
    full = [
        key[1]
        for key, count in taken.items()
        if isinstance(key, tuple) and key[0] == "organization" and count >= LIMITS.organization
    ]
    values: dict[str, Any] = {
        "each": LIMITS.receiver,
        "slow": SLOW_MS,
        "full": full,
        "limit": _FOUND,
    }
    with connection.cursor() as cursor:
        cursor.execute(_FIND_DUE, values)
        return [_Due(*row) for row in cursor.fetchall()]


def _choose(found: Sequence[_Due], taken: Places) -> dict[UUID, _Due]:
    """Takes places for deliveries as long as there are any; returns these by their ids.

    No owner gets its second place before each of the others has had its first.
    """
    chosen: dict[UUID, _Due] = {}
    for share in range(1, LIMITS.organization + 1):
        for due in found:
            if due.id in chosen or taken["organization", due.organization] >= share:
                continue
            if taken.has_room(places := due.places()):
                taken.take(places)
                chosen[due.id] = due
    return chosen


def _prepare(
    subscription: Subscription, event: Event, names: Mapping[UUID, str]
) -> Callable[[], SendingOutcome] | SendingOutcome:
    """Returns what sends an event to a subscription."""
    owner = "" if event.organization_id is None else names.get(event.organization_id, "")
    message = WebhookMessage(
        id=str(event.pk),
        kind=event.kind,
        created_at=event.created_at,
        organization_id=None if event.organization_id is None else str(event.organization_id),
        data=event.data,
        organization=owner if subscription.organization_id is None else "",
    )
    try:
        match subscription.form:
            case Subscription.Form.EMAIL:
                return partial(_send_mail, message, subscription.address)
            case Subscription.Form.SLACK:
                return partial(_send_chat, message, subscription.reveal_url())
            case _:
                secrets = subscription.signing_secrets(clock.now())
                return partial(_send_webhook, message, subscription.url, secrets)
    except DecryptionFailed:
        return SendingOutcome("None of CREDENTIAL_KEYS decrypts the secret of the webhook.")


def _send_mail(message: WebhookMessage, address: str) -> SendingOutcome:
    subject, text = render_mail(message)
    message_id = f"<{message.id}@causeway.{address.rpartition('@')[2]}>"
    return mail(address, subject, text, message_id=message_id)


def _send_chat(message: WebhookMessage, url: str) -> SendingOutcome:
    return post(url, {}, render_chat(message))


def _send_webhook(message: WebhookMessage, url: str, secrets: Sequence[Secret]) -> SendingOutcome:
    body, stamp = render_webhook(message), int(clock.now().timestamp())
    signed = signing.sign(secrets, message_id=message.id, timestamp=stamp, body=body)
    return post(url, signed, body)


def _store(due: _Due, attempts: int, subscription: Subscription, outcome: SendingOutcome) -> int:
    """Stores the result of an attempt, and disables a receiver that is gone.

    ``subscription`` is as it was when the attempt began.
    """
    failed = bool(outcome.error)
    is_last = failed and (outcome.is_gone or attempts > len(_PAUSES))
    status = "delivered" if not failed else "failed" if is_last else "pending"
    asked = min(outcome.retry_after, _MOST_ASKED)
    pause = max(_jitter(_PAUSES[attempts - 1]), asked) if status == "pending" else 0.0
    values: dict[str, Any] = {
        "id": due.id,
        "subscription": due.subscription,
        "url": subscription.url,
        "sealed": bytes(subscription.sealed),
        "attempts": attempts,
        "status": status,
        "response": outcome.status,
        "error": outcome.error,
        "duration": outcome.duration_ms,
        "pause": pause,
        "failed": failed,
        "longest": _LONGEST_PAUSE,
        "asked": asked,
        "change": _STORED_CHANGE_MS,
    }
    with connection.cursor() as cursor:
        cursor.execute(_STORE, values)
        found = cursor.fetchone()
    _DELIVERIES.labels(subscription.form, status if not failed or is_last else "retried").inc()
    if not failed:
        return 1
    logger.info(
        "event delivery %s to subscription %s failed at attempt %d: %s",
        due.id, due.subscription, attempts, outcome.error,
    )  # fmt: skip
    if found is None:
        return 1  # it was for another URL, or the event was sent again meanwhile
    if outcome.is_gone:
        _disable(due.subscription, "The receiver answered 410 Gone.")
    elif not outcome.is_ours and clock.now() - found[0] > _DISABLED_AFTER:
        _disable(due.subscription, "Every attempt has failed for five days.")
    return 1


def _disable(subscription_id: UUID, reason: str) -> None:
    # Its owner may have deleted it meanwhile.
    with suppress(SubscriptionNotFound):
        if Subscription.objects.find(subscription_id).disable(reason=reason):
            logger.warning("subscription %s is disabled: %s", subscription_id, reason)


def _jitter(seconds: float) -> float:
    """Returns a pause that differs by up to a fifth, so that receivers are not hit in waves."""
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - nobody gains by guessing it


def _clear() -> None:
    """Deletes deliveries and events whose time is over."""
    old = Delivery.objects.filter(pk__lt=first_event_id(clock.now() - KEPT)).order_by("pk")
    ids: Sequence[UUID]
    while ids := list(old.values_list("pk", flat=True)[:_BATCH]):
        Delivery.objects.filter(pk__in=ids).delete()
    clear_events()
