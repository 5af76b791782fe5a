"""The duty that delivers events, outside any transaction, at least once.

A delivery is claimed for the length of a lease by the database's clock, sent by a thread, and its
result is stored afterwards: a process that is killed loses none, and may send one twice. Receivers
are bulkheads. At most a few attempts run for one organization, for one host and for the mail
server. Receivers that fail or are slow share half of the places, so that they delay nobody else's
events, even if they belong to many organizations and take everything in the end.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from django.db import DatabaseError, connection
from prometheus_client import Counter as Metric

from accounts.models.organizations import Organization
from accounts.webhooks.dispatching import dispatch_events, send_digests
from accounts.webhooks.locks import RowLocked, short_locks
from accounts.webhooks.messages import Message
from accounts.webhooks.models import Delivery, Subscription, SubscriptionNotFound
from accounts.webhooks.sending import Attempt, Outcome
from config.clocks.clock import clock
from config.events.outbox import KEPT, Event, clear_events, first_event_id
from config.secrets import DecryptionFailed

logger = logging.getLogger("causeway.work")

_DELIVERIES: Final = Metric(
    "causeway_deliveries_total", "Attempts to deliver an event, by form and result.",
    ("form", "result"),
)  # fmt: skip
# Seconds before each attempt after the first; a fifth is added or subtracted. In all three days.
_PAUSES: Final = (5, 60, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 64_800, 86_400)
# A receiver that fails gets nothing for two seconds, then four, and so on up to five minutes.
_LONGEST_PAUSE: Final = 300
# A receiver that asks for a longer time with ``Retry-After`` is obeyed for an hour.
_MOST_ASKED: Final = 3_600.0
_DISABLED_AFTER: Final = timedelta(days=5)
# An attempt takes ten seconds at most, but a slow mail server may take them for each of its steps.
_LEASE_SECONDS: Final = 120
_ENDLESS: Final = "The attempt did not end."
_PLACES: Final = 32
_PLACES_OF_SLOW: Final = 16
_OF_AN_ORGANIZATION: Final = 4
_OF_A_HOST: Final = 12
_OF_A_SLOW_HOST: Final = 4
_OF_A_SUBSCRIPTION: Final = 2
# A receiver whose attempts take longer on average is slow, whether they fail or not.
_SLOW_MS: Final = 2_000
# A smaller change of the average is not stored: successes of a quick receiver write nothing of it.
_STORED_CHANGE_MS: Final = 50
# How often a run looks for attempts that do not end, and for rows that are no longer locked.
_LOOK_SECONDS: Final = 1.0
# After this time a run takes nothing new, so that the lease of the duty records its success.
_RUN_SECONDS: Final = 120.0
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
LEFT JOIN accounts_organization o ON o.id = s.organization_id
CROSS JOIN LATERAL (
    SELECT id, next_attempt_at FROM accounts_delivery
    WHERE subscription_id = s.id AND status = 'pending' AND next_attempt_at <= {now}
    ORDER BY next_attempt_at LIMIT %(each)s
) d
WHERE NOT s.disabled AND (s.retry_at IS NULL OR s.retry_at <= {now})
    AND (o.id IS NULL OR o.residence = 'here')
    AND (o.id IS NULL OR o.id <> ALL(%(full)s::uuid[]))
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
# subscription is locked before its delivery, as every transition does.
_STORE: Final = """
WITH locked AS (
    SELECT id FROM accounts_subscription WHERE id = %(subscription)s FOR NO KEY UPDATE
),
ended AS (
    UPDATE accounts_delivery d SET
        status = %(status)s, response_status = %(response)s, error = %(error)s,
        duration_ms = %(duration)s, next_attempt_at = {now} + make_interval(secs => %(pause)s),
        delivered_at = CASE WHEN %(status)s = 'delivered' THEN {now} END
    FROM locked
    WHERE d.id = %(id)s AND d.subscription_id = locked.id
        AND d.attempts = %(attempts)s AND d.status = 'pending'
    RETURNING d.subscription_id
)
UPDATE accounts_subscription s SET
    failures = CASE WHEN %(failed)s THEN s.failures + 1 ELSE 0 END,
    failing_since = CASE WHEN %(failed)s THEN coalesce(s.failing_since, {now}) END,
    retry_at = CASE WHEN %(failed)s THEN greatest(s.retry_at, {now} + make_interval(secs =>
        greatest(least(2 ^ least(s.failures + 1, 20), %(longest)s), %(asked)s))) END,
    mean_ms = (s.mean_ms * 3 + %(duration)s) / 4
FROM ended
WHERE s.id = ended.subscription_id AND (
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

    def places(self) -> Iterator[tuple[Any, int]]:
        """Yields the bulkheads that the attempt takes a place in, with the size of each."""
        yield "all", _PLACES
        if self.is_slow:
            yield "slow", _PLACES_OF_SLOW
        yield ("subscription", self.subscription), 1 if self.is_slow else _OF_A_SUBSCRIPTION
        if self.organization is not None:
            yield ("organization", self.organization), _OF_AN_ORGANIZATION
        # Many organizations may have the same host, for instance that of a chat. All mails have
        # the same one: the mail server of the settings.
        host = urlsplit(self.url).hostname
        yield ("host", host), _OF_A_HOST
        if self.is_slow:
            yield ("slow host", host), _OF_A_SLOW_HOST


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """An attempt that runs in a thread.

    Two of them are never equal: an event that is sent again by hand during its first attempt has
    two first attempts, each with a place of its own.
    """

    due: _Due
    attempts: int
    form: str

    @property
    def is_mail(self) -> bool:
        return self.form == Subscription.Form.EMAIL


class _Attempts:
    """The attempts of one run: those that a thread makes, the places they take, and their results.

    A thread that has not ended when the lease of its delivery does is given up: a mail server that
    sends a byte now and then never reaches a time limit, and would keep the run from ending. A
    result whose subscription is locked is late: it keeps its place, is stored when it can be, and
    is given up at the end of the lease too.
    """

    def __init__(self) -> None:
        self.taken: Counter[Any] = Counter()
        self._began: dict[_Running, float] = {}
        self._late: dict[_Running, Outcome] = {}
        self._results: queue.SimpleQueue[tuple[_Running, Outcome]] = queue.SimpleQueue()
        self._looks_at = 0.0

    def begin(self, attempt: Attempt, place: _Running) -> None:
        """Makes an attempt in a thread."""
        self._began[place] = time.monotonic()
        # A daemon: `work` may end while an attempt runs, and the lease ends by itself.
        threading.Thread(target=_attempt, args=(attempt, place, self._results), daemon=True).start()

    def collect(self, seconds: float) -> bool:
        """Stores a result that arrives within some seconds; returns whether there was one."""
        now = time.monotonic()
        if now >= self._looks_at:
            self._looks_at = now + _LOOK_SECONDS
            self._give_up(now - _LEASE_SECONDS)
            self._store_late()
        try:
            place, outcome = self._results.get(timeout=seconds)
        except queue.Empty:
            return False
        self._finish(place, outcome)
        return True

    def _finish(self, place: _Running, outcome: Outcome) -> bool:
        """Stores the result of an attempt and frees its places; returns whether it could."""
        is_done = True
        try:
            is_done = _store_unless_locked(place, outcome)
        except DatabaseError as exc:
            # The lease of the delivery ends and the event is sent again; the others go on.
            name = type(exc).__name__
            logger.error("the result of delivery %s is not stored: %s", place.due.id, name)
        if is_done:
            self._free(place)
        elif place in self._began:
            self._late[place] = outcome
        return is_done

    def _free(self, place: _Running) -> None:
        """Frees the places of an attempt, unless it was given up."""
        if self._began.pop(place, None) is not None:
            self.taken.subtract(key for key, _ in place.due.places())

    def _store_late(self) -> None:
        """Tries one late result of each subscription; the others wait for the same row."""
        first = {place.due.subscription: place for place in reversed(self._late)}
        for place in first.values():
            if self._finish(place, self._late[place]):
                del self._late[place]

    def _give_up(self, ended: float) -> None:
        for place in [each for each, began in self._began.items() if began <= ended]:
            if self._late.pop(place, None) is not None:
                logger.error(
                    "the result of delivery %s is not stored: the row of its subscription is "
                    "locked",
                    place.due.id,
                )
                self._free(place)
                continue
            logger.error("the attempt of delivery %s does not end", place.due.id)
            # It counts as a failure, so that no further thread follows at once. A late result of
            # the thread still replaces it.
            duration_ms = round(_LEASE_SECONDS * 1000)
            outcome = Outcome(_ENDLESS, duration_ms=duration_ms, is_ours=place.is_mail)
            self._finish(place, outcome)


def deliver_events() -> int:
    """Dispatches new events and delivers what is due; returns the number of attempts.

    It ends when nothing is due and nothing runs.
    """
    _clear()
    send_digests()
    until = time.monotonic() + _RUN_SECONDS
    attempts = _Attempts()
    done = 0
    while True:
        has_more = False
        if time.monotonic() < until:
            has_more = dispatch_events()
            for attempt, place in _claim(attempts.taken):
                attempts.begin(attempt, place)
        if not has_more and not attempts.taken["all"]:
            return done
        done += attempts.collect(0.0 if has_more else 1.0)


def _attempt(
    attempt: Attempt, place: _Running, results: queue.SimpleQueue[tuple[_Running, Outcome]]
) -> None:
    """Makes an attempt in a thread, and always puts its result into the queue.

    A defect of ours ends one attempt as a failure: without a result the run would wait for ever.
    """
    try:
        outcome = attempt.make()
    except Exception:
        logger.exception("the delivery of event %s failed", attempt.message.id)
        outcome = Outcome("The service failed to send it.")
    results.put((place, outcome))


def _claim(taken: Counter[Any]) -> Iterator[tuple[Attempt, _Running]]:
    """Claims due deliveries as far as there are places; yields an attempt for each."""
    if taken["all"] >= _PLACES:
        return
    chosen = _choose(_find_due(taken), taken)
    if not chosen:
        return
    with connection.cursor() as cursor:
        cursor.execute(_CLAIM, {"ids": list(chosen), "lease": _LEASE_SECONDS})
        attempts: dict[UUID, int] = dict(cursor.fetchall())
    event_of = dict(Delivery.objects.filter(pk__in=attempts).values_list("pk", "event_id"))
    subscriptions = Subscription.objects.select_related("member").in_bulk(
        list({chosen[pk].subscription for pk in attempts})
    )
    events = Event.objects.in_bulk(list(event_of.values()))
    owners = {each.organization_id for each in events.values() if each.organization_id is not None}
    names = dict(Organization.objects.filter(pk__in=owners).values_list("pk", "name"))
    for pk, due in chosen.items():
        subscription = subscriptions.get(due.subscription)
        event = events.get(event_of.get(pk))
        if pk not in attempts or subscription is None or event is None:
            # Somebody else has claimed it, or what it needs was deleted meanwhile.
            taken.subtract(key for key, _ in due.places())
            continue
        place = _Running(due, attempts[pk], subscription.form)
        try:
            yield _prepare(subscription, event, names), place
        except DecryptionFailed:
            taken.subtract(key for key, _ in due.places())
            lost = Outcome("None of CREDENTIAL_KEYS decrypts the secret of the webhook.")
            _store_unless_locked(place, lost)


def _find_due(taken: Counter[Any]) -> list[_Due]:
    """Returns deliveries that are due, but those of organizations that have all of their places.

    The statement leaves those out, so that their backlog does not fill what it returns.
    """
    full = [
        key[1]
        for key, count in taken.items()
        if key[0] == "organization" and count >= _OF_AN_ORGANIZATION
    ]
    values: dict[str, Any] = {
        "each": _OF_A_SUBSCRIPTION,
        "slow": _SLOW_MS,
        "full": full,
        "limit": _FOUND,
    }
    with connection.cursor() as cursor:
        cursor.execute(_FIND_DUE, values)
        return [_Due(*row) for row in cursor.fetchall()]


def _choose(found: Sequence[_Due], taken: Counter[Any]) -> dict[UUID, _Due]:
    """Takes places for deliveries as long as there are any; returns these by their ids.

    No owner gets its second place before each of the others has had its first.
    """
    chosen: dict[UUID, _Due] = {}
    for share in range(1, _OF_AN_ORGANIZATION + 1):
        for due in found:
            if due.id in chosen or taken["organization", due.organization] >= share:
                continue
            places = list(due.places())
            if all(taken[key] < most for key, most in places):
                taken.update(key for key, _ in places)
                chosen[due.id] = due
    return chosen


def _prepare(subscription: Subscription, event: Event, names: Mapping[UUID, str]) -> Attempt:
    owner = "" if event.organization_id is None else names.get(event.organization_id, "")
    message = Message(
        id=str(event.pk),
        kind=event.kind,
        created_at=event.created_at,
        organization_id=None if event.organization_id is None else str(event.organization_id),
        data=event.data,
        organization=owner if subscription.organization_id is None else "",
    )
    if subscription.form == Subscription.Form.EMAIL:
        return Attempt(message, subscription.form, address=subscription.address)
    is_signed = subscription.form == Subscription.Form.WEBHOOK
    return Attempt(
        message,
        subscription.form,
        url=subscription.reveal_url(),
        secrets=subscription.signing_secrets(clock.now()) if is_signed else (),
    )


def _store_unless_locked(place: _Running, outcome: Outcome) -> bool:
    """Stores the result of an attempt; returns false if the row of its subscription is locked."""
    try:
        with short_locks():
            _store(place, outcome)
    except RowLocked:
        return False
    return True


def _store(place: _Running, outcome: Outcome) -> None:
    """Stores the result of an attempt, and disables a receiver that is gone."""
    failed = bool(outcome.error)
    is_last = failed and (outcome.is_gone or place.attempts > len(_PAUSES))
    status = "delivered" if not failed else "failed" if is_last else "pending"
    asked = min(outcome.retry_after, _MOST_ASKED)
    pause = max(_jitter(_PAUSES[place.attempts - 1]), asked) if status == "pending" else 0.0
    values: dict[str, Any] = {
        "id": place.due.id,
        "subscription": place.due.subscription,
        "attempts": place.attempts,
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
    _DELIVERIES.labels(place.form, status if not failed or is_last else "retried").inc()
    if not failed:
        return
    logger.info(
        "event delivery %s to subscription %s failed at attempt %d: %s",
        place.due.id, place.due.subscription, place.attempts, outcome.error,
    )  # fmt: skip
    since = None if found is None else found[0]
    if outcome.is_gone:
        _disable(place.due.subscription, "The receiver answered 410 Gone.")
    elif since is not None and not outcome.is_ours and clock.now() - since > _DISABLED_AFTER:
        _disable(place.due.subscription, "Every attempt has failed for five days.")


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
