"""The table of events, and the function that stores one."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.serializers.json import DjangoJSONEncoder
from django.db import connection, models
from django.db.models import Q
from django.db.models.functions import Now

from config.apps import event_kinds
from config.clocks.clock import clock

KEPT: Final = timedelta(days=30)
# What may be told once in a calendar month is remembered for longer than the longest month.
_ONCE_KEPT: Final = timedelta(days=35)
# Rows that one statement deletes: a long statement would keep dead rows in every table.
_BATCH: Final = 5_000
_INSERT: Final = """
INSERT INTO config_event (id, organization_id, kind, data, once_key)
VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""


def new_event_id() -> uuid.UUID:
    """Returns a UUID of version 7: ids are in the order of time, to the millisecond."""
    return _make_id(clock.now(), secrets.randbits(74))


def first_event_id(moment: datetime) -> uuid.UUID:
    """Returns the lowest id of a moment."""
    return _make_id(moment, 0)


def _make_id(moment: datetime, random: int) -> uuid.UUID:
    millisecond = int(moment.timestamp() * 1000)
    high, low = random >> 62, random & (2**62 - 1)
    return uuid.UUID(int=millisecond << 80 | 7 << 76 | high << 64 | 2 << 62 | low)


class Event(models.Model):
    """Something that happened and that people may want to be told; see :func:`record_event`.

    The id is the ``webhook-id`` of every delivery, so that a receiver knows an event that it gets
    twice. ``once_key`` lets a state that lasts tell of itself once in a period. ``dispatched_at``
    is when the deliveries to its subscribers were stored; events stay for 30 days.
    """

    id = models.UUIDField(primary_key=True, default=new_event_id, editable=False)
    # No foreign key: this room knows no organizations.
    organization_id = models.UUIDField("organization ID", null=True, editable=False)
    kind = models.CharField(max_length=64, editable=False)
    data = models.JSONField(editable=False)
    once_key = models.CharField(max_length=255, null=True, editable=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    dispatched_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        ordering = ("-id",)
        indexes = [
            models.Index(fields=("id",), condition=Q(dispatched_at=None), name="event_waiting"),
            models.Index(fields=("organization_id", "-id"), name="event_by_organization"),
            models.Index(fields=("kind", "-id"), name="event_by_kind"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=("once_key",), condition=Q(once_key__isnull=False), name="event_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"


def record_event(
    kind: str, *, organization: uuid.UUID | None, data: Mapping[str, Any], once: str = ""
) -> bool:
    """Stores an event in the caller's transaction, so that it is sent if that commits.

    ``kind`` is a declared one and ``data`` has the names of its sample; neither may contain a
    secret or a text of a request. A second event with the same ``once`` is not stored: its callers
    put the kind, the subject and the period into it. Returns whether the event is new.
    """
    event_kinds()[kind].require_names(data)
    values = [
        new_event_id(),
        organization,
        kind,
        json.dumps(data, cls=DjangoJSONEncoder),
        _once_key(kind, once) if once else None,
    ]
    with connection.cursor() as cursor:
        cursor.execute(_INSERT, values)
        is_new: bool = cursor.rowcount == 1
    return is_new


@dataclass(frozen=True, slots=True)
class NewEvent:
    """An event of a state that may have been told before in its period, which ``once`` names."""

    kind: str
    organization_id: uuid.UUID | None
    data: Mapping[str, Any]
    once: str


def record_new(events: Sequence[NewEvent]) -> int:
    """Stores the events that were not told before, and returns their number.

    What was told is found by one query, because a state that lasts is found again and again.
    """
    keys = [_once_key(event.kind, event.once) for event in events]
    told = set(Event.objects.filter(once_key__in=keys).values_list("once_key", flat=True))
    return sum(
        record_event(
            event.kind, organization=event.organization_id, data=event.data, once=event.once
        )
        for event, key in zip(events, keys, strict=True)
        if key not in told
    )


def _once_key(kind: str, once: str) -> str:
    return f"{kind}|{once}"[:255]


def clear_events() -> int:
    """Deletes the events whose time is over, and returns their number."""
    now, deleted = clock.now(), 0
    old = Q(pk__lt=first_event_id(now - KEPT), once_key=None) | Q(
        pk__lt=first_event_id(now - _ONCE_KEPT)
    )
    while ids := list(
        Event.objects.filter(old).order_by("pk").values_list("pk", flat=True)[:_BATCH]
    ):
        # The deliveries are deleted before, and nothing else refers to an event.
        rows = Event.objects.filter(pk__in=ids)
        deleted += rows._raw_delete(rows.db)
        if len(ids) < _BATCH:
            break
    return deleted
