"""How a worker counts what all workers send to a provider, and when the next request fits."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
import pytest
from django.db import connection

from config import sql
from inference.routing.pacing import Pace, Pacer, oldest_pace
from inference.settlement.journal import EXCHANGE_PACE

ONE = uuid.UUID(int=1)
NOW = 1_000_000_000.0
TEN = Pace(ONE, 10, None)


def exchange(pacer: Pacer, now: float) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        rows = msgspec.json.encode(pacer.outgoing()).decode()
        sql.execute(cursor, EXCHANGE_PACE, [rows, oldest_pace(now)])
        found = [row for row in cursor.fetchall() if row[0] == ONE]
    pacer.merge(found)
    return found


def test_requests_fit_up_to_the_limit_and_again_after_a_minute() -> None:
    pacer = Pacer()
    for _ in range(10):
        assert pacer.wait(TEN, 0, NOW) == 0
        pacer.count(ONE, 1, 0, NOW)
    # The bucket of these requests began at NOW, and all of it must be a minute old.
    assert pacer.wait(TEN, 0, NOW) == 65
    assert pacer.wait(TEN, 0, NOW + 59) == 6
    assert pacer.wait(TEN, 0, NOW + 64.5) == 1
    assert pacer.wait(TEN, 0, NOW + 65) == 0


def test_a_wait_ends_when_enough_has_left_the_window() -> None:
    pacer = Pacer()
    for second in (0, 20, 40):
        pacer.count(ONE, 4, 0, NOW + second)
    assert pacer.wait(TEN, 0, NOW + 41) == 65 - 41
    pacer.count(ONE, 4, 0, NOW + 41)
    assert pacer.wait(TEN, 0, NOW + 41) == 20 + 65 - 41


def test_tokens_have_a_limit_of_their_own() -> None:
    pacer, pace = Pacer(), Pace(ONE, None, 1000)
    pacer.count(ONE, 1, 700, NOW)
    assert pacer.wait(pace, 300, NOW) == 0
    assert pacer.wait(pace, 301, NOW) == 65
    # A request beyond the whole limit fits into an empty minute alone.
    assert pacer.wait(pace, 5000, NOW) == 65
    assert pacer.wait(pace, 5000, NOW + 65) == 0


def test_what_was_not_sent_is_given_back() -> None:
    pacer = Pacer()
    pacer.count(ONE, 10, 90, NOW)
    pacer.count(ONE, -1, -9, NOW)
    assert pacer.wait(TEN, 0, NOW) == 0


def test_workers_share_their_counts(db: None) -> None:
    one, other = Pacer(), Pacer()
    one.count(ONE, 6, 60, NOW)
    other.count(ONE, 4, 40, NOW + 1)
    exchange(one, NOW + 1)
    assert exchange(other, NOW + 1) == [(ONE, int(NOW) // 5, 10, 100)]
    assert other.wait(TEN, 0, NOW + 2) > 0
    assert one.wait(TEN, 0, NOW + 2) == 0
    exchange(one, NOW + 2)
    assert one.wait(TEN, 0, NOW + 2) > 0
    assert exchange(one, NOW + 66) == []
    assert one.wait(TEN, 0, NOW + 66) == 0


def test_counts_from_a_clock_that_was_ahead_stop_nobody(db: None) -> None:
    early, late = Pacer(), Pacer()
    early.count(ONE, 10, 0, NOW + 7200)
    exchange(early, NOW + 7200)
    late.count(ONE, 1, 0, NOW)
    assert exchange(late, NOW) == [(ONE, int(NOW) // 5, 1, 0)]
    assert late.wait(TEN, 0, NOW) == 0


def test_the_others_are_expected_to_go_on(db: None) -> None:
    one, other = Pacer(), Pacer()
    for second in (0, 1):
        other.count(ONE, 3, 0, NOW + second)
        exchange(other, NOW + second)
        exchange(one, NOW + second)
    # Six were sent, three of them in the last second; three more are expected.
    one.count(ONE, 1, 0, NOW + 1)
    assert one.wait(TEN, 0, NOW + 1) > 0
    exchange(one, NOW + 2)
    assert one.wait(TEN, 0, NOW + 2) == 0


def test_counts_of_a_failed_exchange_are_sent_again(db: None) -> None:
    pacer = Pacer()
    pacer.count(ONE, 2, 20, NOW)
    assert len(pacer.outgoing()) == 1
    pacer.count(ONE, 1, 10, NOW)
    assert exchange(pacer, NOW) == [(ONE, int(NOW) // 5, 3, 30)]
    assert pacer.outgoing() == []


@pytest.mark.parametrize(
    ("requests", "tokens", "is_free"),
    [(None, None, True), (1, None, False), (None, 10, False), (2, 20, True), (2, 10, False)],
)
def test_each_limit_counts_by_itself(
    requests: int | None, tokens: int | None, is_free: bool
) -> None:
    pacer = Pacer()
    pacer.count(ONE, 1, 10, NOW)
    assert (pacer.wait(Pace(ONE, requests, tokens), 10, NOW) == 0) is is_free
