"""Stores the deliveries of new events: one for each subscription that wants the event.

An organization that makes very many events does not bury its receivers, nor those of the operators:
beyond a limit in an hour events are held back, and a digest tells how many of which kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import Case, Count, Min, Q, QuerySet, When
from psycopg.errors import ForeignKeyViolation

from accounts.webhooks.models import (
    Delivery,
    Subscription,
    SubscriptionDisabled,
    SubscriptionNotFound,
)
from config.apps import event_kinds
from config.clocks.clock import clock
from config.events.outbox import Event, first_event_id
from config.outbound.engine import RowLocked, short_locks

# Events of one organization, or of one kind without one, that a subscription gets in an hour.
HOURLY: Final = {"webhook": 1_000, "slack": 20, "email": 20}
_HOUR: Final = timedelta(hours=1)
_BATCH: Final = 200
_BATCHES: Final = 5

# A subscription, and the organization of events, or their kind where they are of none.
Subject = tuple[UUID, UUID | str]


def waiting_events() -> QuerySet[Event]:
    """Returns the events without deliveries."""
    return Event.objects.filter(dispatched_at=None)


def dispatch_events() -> bool:
    """Stores the deliveries of events that wait; returns whether more of them may wait.

    It ends after a bounded number, so that an organization that makes events without end does not
    keep what is stored from being sent. A killed process leaves no event half dispatched.
    Concurrent calls take different events.
    """
    for _ in range(_BATCHES):
        try:
            if not _dispatch_batch():
                return False
        except IntegrityError as exc:
            # A subscription was deleted after it was read; the next batch has the same events.
            if not isinstance(exc.__cause__, ForeignKeyViolation):
                raise
    return True


@transaction.atomic
def _dispatch_batch() -> bool:
    """Dispatches the oldest events that wait; returns whether there were any."""
    rows = waiting_events().order_by("id").select_for_update(skip_locked=True)
    events = list(rows[:_BATCH])
    Delivery.objects.bulk_create(_find_deliveries(events), ignore_conflicts=True)
    ids = [event.pk for event in events]
    Event.objects.filter(pk__in=ids).update(dispatched_at=clock.now())
    return bool(events)


def send_digests() -> int:
    """Tells of the events that were held back for an hour; returns the number of digests."""
    held = Delivery.objects.filter(status=Delivery.Status.HELD, subscription__disabled=False)
    groups = (
        held.values_list("subscription", "event__organization_id")
        .annotate(since=Min("created_at"))
        .filter(since__lt=clock.now() - _HOUR)
        .order_by("since")[:_BATCH]
    )
    done = 0
    for subscription_id, about, _ in groups:
        # Its owner may have disabled or deleted the subscription meanwhile, or is about to.
        with suppress(SubscriptionDisabled, SubscriptionNotFound, RowLocked), short_locks():
            done += Delivery.objects.digest(subscription_id, about=about)
    return done


def _find_deliveries(events: Iterable[Event]) -> list[Delivery]:
    """Returns the unsaved deliveries of events: pending ones, and held ones beyond the limits."""
    owners = {event.organization_id for event in events} - {None}
    by_owner: defaultdict[UUID | None, list[Subscription]] = defaultdict(list)
    for row in Subscription.objects.filter(
        Q(organization_id__in=owners) | Q(organization=None), disabled=False
    ):
        by_owner[row.organization_id].append(row)
    kinds = event_kinds()
    wanted: list[tuple[Subscription, Event]] = []
    for event in events:
        kind = kinds.get(event.kind)
        if kind is None:
            continue  # a newer release has stored it
        rows = list(by_owner[None])
        if event.organization_id is not None and not kind.for_operators:
            rows += by_owner[event.organization_id]
        wanted += [(row, event) for row in rows if row.wants(event.kind)]
    sent = _count_sent({row.pk for row, _ in wanted})
    found = []
    for row, event in wanted:
        subject = (row.pk, event.organization_id or event.kind)
        sent[subject] += 1
        is_held = sent[subject] > HOURLY[row.form]
        found.append(
            Delivery(
                organization_id=row.organization_id,
                subscription=row,
                event=event,
                status=Delivery.Status.HELD if is_held else Delivery.Status.PENDING,
            )
        )
    return found


def _count_sent(subscriptions: Iterable[UUID]) -> Counter[Subject]:
    """Counts the events of the last hour by subscription and organization of the event.

    Events of no organization count by their kind: what a stranger causes silences nothing else.
    """
    since = first_event_id(clock.now() - _HOUR)
    rows = (
        Delivery.objects.filter(subscription__in=subscriptions, pk__gte=since)
        .exclude(status__in=(Delivery.Status.HELD, Delivery.Status.DIGESTED))
        .annotate(kind=Case(When(event__organization_id=None, then="event__kind")))
        .values_list("subscription", "event__organization_id", "kind")
        .annotate(count=Count("pk"))
        .order_by()
    )
    return Counter({(row, owner or kind): count for row, owner, kind, count in rows})
