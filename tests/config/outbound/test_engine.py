"""The engine with a source of its own: places, results that are known, and defects."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from config.outbound import engine
from config.outbound.engine import (
    DeliveryAttempt,
    DeliveryAttempts,
    Limits,
    Places,
    RowLocked,
    Source,
    sources,
)
from config.outbound.sending import SendingOutcome

LIMITS = Limits(total=2, slow=1, organization=2, receiver=2, host=2, slow_host=1)


class Queue(Source):
    """Sends what it has, in order, and keeps the errors of the results."""

    duty = "test_queue"

    def __init__(self, *names: str, fails: str = "") -> None:
        self.names = [*names]
        self.fails = fails
        self.most = 0
        self.stored: dict[str, str] = {}

    def begin_run(self) -> None:
        self.stored.clear()

    def begin_due(self, attempts: DeliveryAttempts) -> bool:
        while self.names:
            name = self.names[0]
            places = LIMITS.places(name, None, None, is_slow=False)
            if not attempts.taken.has_room(places):
                break
            del self.names[0]
            attempts.begin(
                DeliveryAttempt(name, places, partial(self.send, name), partial(self.store, name))
            )
            self.most = max(self.most, attempts.taken["all"])
        return False

    def send(self, name: str) -> SendingOutcome:
        if name == self.fails:
            raise RuntimeError("a defect")
        return SendingOutcome(status=200)

    def store(self, name: str, outcome: SendingOutcome) -> int:
        self.stored[name] = outcome.error
        return 1


def test_the_apps_declare_their_sources() -> None:
    assert [source.duty for source in sources()] == ["deliver_events", "broadcast_generations"]


@pytest.mark.django_db
def test_a_run_sends_everything_in_its_places() -> None:
    queue = Queue("a", "b", "c", "d", "e")
    assert queue.run() == 5
    assert queue.stored == dict.fromkeys("abcde", "")
    assert queue.most == 2
    assert queue.run() == 0


@pytest.mark.django_db
def test_a_defect_ends_one_attempt_alone() -> None:
    queue = Queue("a", "b", "c", fails="b")
    assert queue.run() == 3
    assert queue.stored == {"a": "", "b": "The service failed to send it.", "c": ""}


@pytest.mark.django_db
def test_what_is_known_already_is_stored_as_it_is() -> None:
    attempts, stored = DeliveryAttempts(), list[SendingOutcome]()
    known = SendingOutcome("It cannot be read.", detail="ValueError")

    def store(outcome: SendingOutcome) -> int:
        stored.append(outcome)
        return 3

    attempts.begin(DeliveryAttempt("it", (("all", 1),), known, store))
    assert attempts
    assert (attempts.collect(0.0), stored) == (3, [known])
    assert not attempts
    assert attempts.taken["all"] == 0


@pytest.mark.django_db
def test_one_late_result_of_each_receiver_is_tried_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A try waits for the lock, and the results of all others wait for the try."""
    monkeypatch.setattr(engine, "_LOOK_SECONDS", 0.0)
    attempts, tries, locked = DeliveryAttempts(), list[str](), {"a"}

    def store(receiver: str, name: str, outcome: SendingOutcome) -> int:
        tries.append(name)
        if receiver in locked:
            raise RowLocked
        return 1

    for receiver, name in (("a", "a1"), ("a", "a2"), ("b", "b1")):
        places = replace(LIMITS, total=9).places(receiver, None, None, is_slow=False)
        attempts.begin(
            DeliveryAttempt(name, places, SendingOutcome(), partial(store, receiver, name))
        )
    assert (attempts.collect(0.0), tries) == (1, ["a1", "a2", "b1"])
    tries.clear()
    assert (attempts.collect(0.0), tries) == (0, ["a1"])
    locked.clear()
    tries.clear()
    assert [attempts.collect(0.0), attempts.collect(0.0)] == [1, 1]
    assert tries == ["a1", "a2"]
    assert not attempts


def test_a_slow_receiver_takes_a_place_among_the_slow_ones() -> None:
    quick = LIMITS.places("r", "o", "h", is_slow=False)
    assert quick == (
        ("all", 2), (("receiver", "r"), 2), (("host", "h"), 2), (("organization", "o"), 2),
    )  # fmt: skip
    slow = replace(LIMITS, total=9).places("r", None, "h", is_slow=True)
    assert slow == (
        ("all", 9), (("receiver", "r"), 1), (("host", "h"), 2),
        ("slow", 1), (("slow host", "h"), 1),
    )  # fmt: skip
    taken = Places()
    taken.take(slow)
    assert taken.has_room(LIMITS.places("other", None, "other", is_slow=False))
    assert not taken.has_room(LIMITS.places("other", None, "other", is_slow=True))
    assert not taken.has_room(LIMITS.places("r", None, "other", is_slow=True))
