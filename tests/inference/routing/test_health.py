"""How endpoints stand: from outcomes to states, and the table through which workers share them."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec
import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from config.api.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    PayloadTooLarge,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRefused,
    UpstreamTimeout,
)
from inference.exchange.upstream import RequestUntranslatable
from inference.models import EndpointHealth
from inference.routing import health
from inference.routing.health import (
    EXCHANGE,
    READ,
    Bucket,
    HealthBoard,
    Outcome,
    State,
    judge,
    subject_of,
)
from inference.routing.health import oldest_bucket as oldest
from inference.settlement.sweeper import clear_health

ONE = uuid.UUID(int=1)
TWO = uuid.UUID(int=2)
START = 1_000_000.0
# Merging needs the window's rows as the table returns them.
COLUMNS = ("endpoint_id", "bucket", "successes", "failures", "latencies", "speeds", "retry_at")


def board_of(successes: int, failures: int, *, now: float = START) -> HealthBoard:
    board = HealthBoard()
    for _ in range(successes):
        board.record(ONE, Outcome.SUCCESS, now=now)
    for _ in range(failures):
        board.record(ONE, Outcome.FAILURE, now=now)
    return board


def rows_of(board: HealthBoard) -> list[tuple[Any, ...]]:
    return [tuple(getattr(row, name) for name in COLUMNS) for row in board.outgoing()]


@pytest.mark.parametrize(
    ("successes", "failures", "state"),
    [
        (0, 0, State.HEALTHY),
        (0, 4, State.HEALTHY),
        (0, 5, State.OPEN),
        (5, 4, State.DEGRADED),
        (5, 5, State.OPEN),
        (9, 1, State.DEGRADED),
        (10, 1, State.HEALTHY),
        (100, 0, State.HEALTHY),
    ],
)
def test_the_state_follows_the_share_of_failures(
    successes: int, failures: int, state: State
) -> None:
    assert board_of(successes, failures).standing(ONE, START).state is state


def test_an_endpoint_that_nobody_called_is_healthy_and_unknown() -> None:
    standing = HealthBoard().standing(ONE, START)
    assert standing.body() == {
        "state": "healthy",
        "failure_share": 0.0,
        "latency": None,
        "throughput": None,
    }


@pytest.mark.parametrize(("seconds", "state"), [(59, State.DEGRADED), (60, State.HEALTHY)])
def test_what_left_the_window_counts_no_more(seconds: int, state: State) -> None:
    assert board_of(5, 3).standing(ONE, START + seconds).state is state


@pytest.mark.parametrize(("seconds", "state"), [(4.999, State.OPEN), (5, State.HALF_OPEN)])
def test_an_open_circuit_lets_a_probe_through_after_its_backoff(
    seconds: float, state: State
) -> None:
    board = board_of(0, 5)
    assert board.standing(ONE, START).state is State.OPEN
    assert board.standing(ONE, START + seconds).state is state


def test_one_probe_at_a_time() -> None:
    board = board_of(0, 5)
    board.standing(ONE, START)
    assert board.standing(ONE, START + 6).state is State.HALF_OPEN
    board.claim(ONE, START + 6)
    assert board.standing(ONE, START + 6).state is State.OPEN
    assert board.standing(ONE, START + 65).state is State.OPEN
    assert board.standing(ONE, START + 66).state is State.HALF_OPEN


def test_a_probe_that_succeeds_closes_the_circuit_and_forgives() -> None:
    board = board_of(0, 5)
    board.standing(ONE, START)
    board.claim(ONE, START + 5)
    board.record(ONE, Outcome.SUCCESS, now=START + 5.5)
    standing = board.standing(ONE, START + 5.5)
    assert (standing.state, standing.failure_share) == (State.HEALTHY, 0.0)


def test_probes_that_fail_wait_twice_as_long_up_to_a_minute() -> None:
    board = board_of(0, 5)
    board.standing(ONE, START)
    now, waits = START, []
    for _ in range(6):
        wait = 0.0
        while board.standing(ONE, now + wait).state is not State.HALF_OPEN:
            wait += 1
        now += wait
        waits.append(wait)
        board.claim(ONE, now)
        board.record(ONE, Outcome.FAILURE, now=now)
    assert waits == [5, 10, 20, 40, 60, 60]


def test_an_open_circuit_stays_open_without_traffic() -> None:
    board = board_of(0, 5)
    board.standing(ONE, START)
    assert board.standing(ONE, START + 3600).state is State.HALF_OPEN


@pytest.mark.parametrize(
    ("retry_after", "limited"), [(None, 5), (0, 0), (1, 1), (30, 30), (60, 60), (3600, 60)]
)
def test_a_rate_limit_holds_as_long_as_it_says(retry_after: int | None, limited: int) -> None:
    board = HealthBoard()
    board.record(ONE, Outcome.RATE_LIMITED, now=START, retry_after=retry_after)
    if limited:
        assert board.standing(ONE, START + limited - 0.5).state is State.RATE_LIMITED
    assert board.standing(ONE, START + limited).state is State.HEALTHY


def test_percentiles_name_what_so_many_requests_did_as_well_as() -> None:
    board = HealthBoard()
    for number in range(1, 21):
        board.measure(ONE, number * 10, float(number), now=START)
    standing = board.standing(ONE, START + 1)
    assert standing.latency == {"p50": 100.0, "p75": 150.0, "p90": 180.0, "p99": 200.0}
    assert standing.throughput == {"p50": 11.0, "p75": 6.0, "p90": 3.0, "p99": 1.0}


def test_a_measure_counts_no_second_success() -> None:
    board = HealthBoard()
    board.record(ONE, Outcome.SUCCESS, now=START)
    board.measure(ONE, 100, now=START)
    board.measure(ONE, tokens_per_second=42.5, now=START + 8)
    assert [(row.successes, row.latencies, row.speeds) for row in board.outgoing()] == [
        (1, [100], []),
        (0, [], [42.5]),
    ]
    assert board.standing(ONE, START + 9).throughput == dict.fromkeys(
        ("p50", "p75", "p90", "p99"), 42.5
    )


def test_samples_are_bounded() -> None:
    board = HealthBoard()
    for number in range(1000):
        board.record(ONE, Outcome.SUCCESS, now=START)
        board.measure(ONE, number, 1.0, now=START)
    [row] = board.outgoing()
    assert (row.successes, len(row.latencies), len(row.speeds)) == (1000, 32, 32)


def test_what_cannot_be_sent_is_bounded_too() -> None:
    board = HealthBoard()
    for second in range(0, 3600, 5):
        board.record(ONE, Outcome.SUCCESS, now=START + second)
        board.outgoing()
    assert len(board.outgoing()) == 12


@pytest.mark.parametrize(
    ("error", "is_own", "outcome"),
    [
        (None, False, Outcome.SUCCESS),
        (None, True, Outcome.SUCCESS),
        (UpstreamError(), False, Outcome.FAILURE),
        (UpstreamTimeout(), True, Outcome.FAILURE),
        (UpstreamOverloaded(upstream_status=529), True, Outcome.FAILURE),
        (UpstreamRateLimited(upstream_status=429), False, Outcome.RATE_LIMITED),
        (UpstreamRateLimited(upstream_status=429), True, Outcome.RATE_LIMITED),
        (UpstreamError(upstream_status=401), True, None),
        (UpstreamError(upstream_status=402), True, None),
        (UpstreamError(upstream_status=403), True, None),
        (UpstreamError(upstream_status=404), True, Outcome.FAILURE),
        (UpstreamError(upstream_status=401), False, Outcome.FAILURE),
        (UpstreamTimeout(), False, Outcome.FAILURE),
        (UpstreamOverloaded(upstream_status=529), False, Outcome.FAILURE),
        (UpstreamRefused(upstream_status=400), False, None),
        (RequestUntranslatable(), False, None),
        (PayloadTooLarge(), False, None),
        (InvalidRequest(), False, None),
        (Forbidden(), True, None),
    ],
)
def test_only_faults_of_the_other_side_count(
    error: GatewayError | None, is_own: bool, outcome: Outcome | None
) -> None:
    assert judge(error, is_own=is_own) is outcome


def test_a_probe_that_says_nothing_gives_way_to_the_next() -> None:
    board = board_of(0, 5)
    assert not board.claim(ONE, START)
    assert board.claim(ONE, START + 5)
    assert not board.claim(ONE, START + 5)
    board.release(ONE)
    board.release(TWO)
    assert board.claim(ONE, START + 5)


def test_an_own_credential_costs_a_row_only_once_it_fails() -> None:
    board = HealthBoard()
    for _ in range(8):
        board.record(ONE, Outcome.SUCCESS, now=START, is_own=True)
    assert board.outgoing() == []
    for _ in range(5):
        board.record(ONE, Outcome.FAILURE, now=START, is_own=True)
    # What went well before counts.
    assert board.standing(ONE, START).state is State.DEGRADED
    assert [(row.successes, row.failures) for row in board.outgoing()] == [(8, 5)]


def test_own_credentials_that_do_well_are_remembered_to_a_number_and_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "_REMEMBERED", 3)
    board = HealthBoard()
    subjects = [uuid.UUID(int=number) for number in range(1, 6)]
    for subject in subjects:
        board.record(subject, Outcome.SUCCESS, now=START, is_own=True)
        for _ in range(4):
            board.record(subject, Outcome.FAILURE, now=START, is_own=True)
    shares = [board.standing(subject, START).failure_share for subject in subjects]
    assert shares == [0.8] * 3 + [1.0] * 2
    other = HealthBoard()
    other.record(ONE, Outcome.SUCCESS, now=START, is_own=True)
    other.merge([], START + 59)
    other.record(ONE, Outcome.FAILURE, now=START + 59, is_own=True)
    assert other.standing(ONE, START + 59).failure_share == 0.5
    forgetful = HealthBoard()
    forgetful.record(ONE, Outcome.SUCCESS, now=START, is_own=True)
    forgetful.merge([], START + 90)
    forgetful.record(ONE, Outcome.FAILURE, now=START + 90, is_own=True)
    assert forgetful.standing(ONE, START + 90).failure_share == 1.0


def test_an_open_circuit_that_nobody_tries_is_forgotten() -> None:
    board = board_of(0, 5)
    assert board.standing(ONE, START).state is State.OPEN
    board.outgoing()
    board.merge([], START + 600)
    assert board.standing(ONE, START + 600).state is State.HALF_OPEN
    board.merge([], START + 1000)
    assert board.standing(ONE, START + 1000).state is State.HEALTHY


def test_open_circuits_without_traffic_are_remembered_to_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "_REMEMBERED", 3)
    board = HealthBoard()
    subjects = [uuid.UUID(int=number) for number in range(1, 6)]
    for subject in subjects:
        for _ in range(5):
            board.record(subject, Outcome.FAILURE, now=START)
        board.standing(subject, START)
    board.outgoing()
    board.merge([], START)
    states = [board.standing(subject, START + 5).state for subject in subjects]
    assert states == [State.HEALTHY] * 2 + [State.HALF_OPEN] * 3


def test_the_subjects_of_credentials_are_their_own() -> None:
    assert len({ONE, TWO, subject_of(ONE, TWO), subject_of(TWO, ONE), subject_of(ONE, ONE)}) == 5
    assert subject_of(ONE, TWO) == subject_of(ONE, TWO)


def test_what_was_sent_and_never_merged_is_sent_again() -> None:
    board = board_of(2, 1)
    first = board.outgoing()
    board.record(ONE, Outcome.FAILURE, now=START)
    assert [(row.successes, row.failures) for row in first] == [(2, 1)]
    assert [(row.successes, row.failures) for row in board.outgoing()] == [(2, 2)]


def test_what_is_merged_replaces_what_was_sent() -> None:
    board = board_of(2, 1)
    rows = rows_of(board)
    board.merge(rows, START)
    assert board.outgoing() == []
    assert board.standing(ONE, START).failure_share == 1 / 3
    board.merge([], START)
    assert board.standing(ONE, START).failure_share == 0.0


def test_a_worker_learns_of_failures_that_others_saw() -> None:
    board = HealthBoard()
    board.merge(rows_of(board_of(0, 5)), START)
    assert board.standing(ONE, START).state is State.OPEN
    assert board.standing(TWO, START).state is State.HEALTHY


@given(
    st.lists(st.tuples(st.sampled_from(Outcome), st.integers(0, 90)), max_size=60),
    st.integers(1, 4),
)
def test_workers_agree_on_the_share_of_failures(
    events: list[tuple[Outcome, int]], workers: int
) -> None:
    """However the outcomes are spread, exchanged boards count them once each."""
    boards = [HealthBoard() for _ in range(workers)]
    alone = HealthBoard()
    for index, (outcome, second) in enumerate(sorted(events, key=lambda event: event[1])):
        if outcome is not Outcome.RATE_LIMITED:
            boards[index % workers].record(ONE, outcome, now=START + second)
            alone.record(ONE, outcome, now=START + second)
    table: dict[int, Bucket] = {}
    for board in boards:
        for row in board.outgoing():
            if row.bucket in table:
                table[row.bucket].add(row)
            else:
                table[row.bucket] = row
    rows = [
        tuple(getattr(row, name) for name in COLUMNS)
        for row in table.values()
        if row.bucket > oldest(START + 90)
    ]
    alone.outgoing()
    shares = []
    for board in [*boards, alone]:
        board.merge([(*row[:4], list(row[4]), list(row[5]), row[6]) for row in rows], START + 90)
        shares.append(board.standing(ONE, START + 90).failure_share)
    assert len(set(shares)) == 1


def exchange(board: HealthBoard, now: float) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        rows = msgspec.json.encode(board.outgoing()).decode()
        cursor.execute(EXCHANGE, [rows, oldest(now), oldest(now)])
        # A service that other tests had may still tell of theirs.
        found = [row for row in cursor.fetchall() if row[0] in (ONE, TWO)]
    board.merge(found, now)
    return found


def test_two_workers_share_one_window(db: None) -> None:
    mine, theirs = board_of(1, 2), board_of(1, 2)
    mine.record(TWO, Outcome.SUCCESS, now=START)
    mine.measure(TWO, 120, 33.5, now=START)
    exchange(mine, START)
    exchange(theirs, START)
    assert theirs.standing(ONE, START).failure_share == 4 / 6
    assert theirs.standing(TWO, START).latency == dict.fromkeys(("p50", "p75", "p90", "p99"), 120.0)
    assert exchange(mine, START) == exchange(theirs, START)
    assert mine.standing(ONE, START).state is State.OPEN


def test_a_slot_of_the_ring_is_taken_over_and_late_news_is_dropped(db: None) -> None:
    exchange(board_of(0, 3), START)
    exchange(board_of(0, 2, now=START + 60), START + 60)
    late = board_of(7, 0)
    exchange(late, START + 60)
    with connection.cursor() as cursor:
        cursor.execute(READ, [oldest(START + 60)])
        found = [row[1:4] for row in cursor.fetchall() if row[0] == ONE]
    assert found == [(int(START + 60) // 5, 0, 2)]


def test_the_table_keeps_as_few_samples_as_a_worker(db: None) -> None:
    for _ in range(3):
        board = HealthBoard()
        for number in range(20):
            board.record(ONE, Outcome.SUCCESS, now=START)
            board.measure(ONE, number, float(number), now=START)
        [row] = exchange(board, START)
    assert (row[2], len(row[4]), len(row[5])) == (60, 32, 32)


def test_a_rate_limit_is_shared(db: None) -> None:
    board = HealthBoard()
    board.record(ONE, Outcome.RATE_LIMITED, now=START, retry_after=20)
    exchange(board, START)
    other = HealthBoard()
    exchange(other, START)
    assert other.standing(ONE, START + 19).state is State.RATE_LIMITED
    assert other.standing(ONE, START + 20).state is State.HEALTHY


def test_what_nobody_reads_any_more_is_cleared_away(db: None) -> None:
    now = time.time()
    exchange(board_of(0, 3, now=now), now)
    old = board_of(0, 3, now=now - 720)
    with connection.cursor() as cursor:
        rows = msgspec.json.encode(old.outgoing()).decode().replace(str(ONE), str(TWO))
        cursor.execute(EXCHANGE, [rows, 0, 0])
    clear_health()
    found = EndpointHealth.objects.filter(endpoint_id__in=(ONE, TWO))
    assert list(found.values_list("endpoint_id", flat=True)) == [ONE]
