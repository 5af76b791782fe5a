"""What the outbox stores, and for how long."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import transaction
from django.utils import timezone

from config.apps import event_kinds
from config.events.kinds import EventKind
from config.events.outbox import (
    KEPT,
    Event,
    clear_events,
    first_event_id,
    new_event_id,
    record_event,
)

DATA = {"source": "litellm", "count": 1, "risky": 0, "subjects": ["a at b"]}


def record(once: str = "") -> bool:
    return record_event("catalog.proposed", organization=None, data=DATA, once=once)


def test_an_event_is_stored_with_the_callers_transaction(db: None) -> None:
    organization = uuid4()
    assert record_event("catalog.proposed", organization=organization, data=DATA)
    with transaction.atomic():
        record()
        transaction.set_rollback(True)

    [event] = Event.objects.all()
    assert (event.kind, event.data, event.organization_id) == (
        "catalog.proposed", DATA, organization,
    )  # fmt: skip
    assert event.dispatched_at is None
    assert event.pk.version == 7


def test_a_state_that_lasts_is_told_once_in_a_period(db: None) -> None:
    assert [record("monday"), record("monday"), record("tuesday")] == [True, False, True]
    assert Event.objects.count() == 2


def test_other_data_than_the_samples_are_refused(db: None) -> None:
    with pytest.raises(ValueError, match=r"catalog\.proposed has"):
        record_event("catalog.proposed", organization=None, data={**DATA, "secret": "x"})
    with pytest.raises(KeyError):
        record_event("catalog.unknown", organization=None, data={})
    assert not Event.objects.exists()


def test_ids_are_in_the_order_of_time(db: None) -> None:
    now = timezone.now()
    bounds = [first_event_id(now + timedelta(milliseconds=number)) for number in range(3)]
    assert sorted(bounds, reverse=True) == bounds[::-1]
    before, after = first_event_id(now - timedelta(days=1)), first_event_id(now + timedelta(days=1))
    assert before < new_event_id() < after
    assert len({new_event_id() for _ in range(1_000)}) == 1_000


def test_events_stay_for_30_days_and_what_is_told_once_for_35(db: None) -> None:
    now = timezone.now()
    for days, once in ((29, None), (31, "a"), (32, None), (36, "b"), (37, None)):
        Event.objects.create(
            id=first_event_id(now - timedelta(days=days)),
            kind="catalog.proposed",
            data=DATA,
            once_key=once,
        )
    assert timedelta(days=30) == KEPT
    assert clear_events() == 3
    assert set(Event.objects.values_list("once_key", flat=True)) == {None, "a"}
    assert clear_events() == 0


def test_every_kind_says_its_sample_in_a_sentence() -> None:
    kinds = event_kinds()
    assert list(kinds) == sorted(kinds)
    for kind in kinds.values():
        text = kind.sentence(kind.sample)
        assert text.endswith("."), text
        assert kind.description.endswith("."), kind.name
        assert "{" not in text
        kind.require_names(kind.sample)


def test_an_event_of_an_earlier_release_is_named_by_its_kind() -> None:
    kind = EventKind(
        "key.created", "A key is created.", "The key {name} was created.", {"name": "a"}
    )
    assert kind.sentence({"label": "b"}) == "key.created"


@pytest.mark.parametrize("name", ["key", "Key.created", "key.created.", "key created"])
def test_a_kind_is_a_subject_and_a_verb(name: str) -> None:
    with pytest.raises(ValueError, match=r"subject\.verb"):
        EventKind(name, "A key is created.", "A key was created.", {})
