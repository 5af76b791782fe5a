"""Health of endpoints: the states that outcomes lead to, and the table that workers share."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec
import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from config import sql
from config.api.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    PayloadTooLarge,
    UnusableAnswer,
    UpstreamError,
    UpstreamOverloaded,
    UpstreamRateLimited,
    UpstreamRefused,
    UpstreamTimeout,
)
from inference.admission.explain import READ_HEALTH
from inference.exchange.failures import RequestUntranslatable
from inference.models import EndpointHealth
from inference.routing import health
from inference.routing.health import (
    AttemptOutcome,
    Bucket,
    HealthState,
    HealthTable,
    classify_attempt,
    subject_of,
)
from inference.routing.health import oldest_bucket as oldest
from inference.settlement.health_exchange import EXCHANGE_HEALTH
from inference.settlement.sweeper import clear_health
from tests.support.inference.health import ONE, TWO, exchange
from tests.support.inference.routes import SHARES

START = 1_000_000.0


# The columns of a row in the order in which the database returns them.
COLUMNS = ("endpoint_id", "bucket", "successes", "failures", "latencies", "speeds", "retry_at")


def table_of(successes: int, failures: int, *, now: float = START) -> HealthTable:
    table = HealthTable()
    record(table, successes, failures, now=now)
    return table


def record(
    table: HealthTable,
    successes: int,
    failures: int,
    *,
    subject: uuid.UUID = ONE,
    now: float = START,
    is_own: bool = False,
) -> None:
    outcomes = [AttemptOutcome.SUCCESS] * successes + [AttemptOutcome.FAILURE] * failures
    for outcome in outcomes:
        table.record(subject, outcome, now=now, has_own_credential=is_own)


def rows_of(table: HealthTable) -> list[tuple[Any, ...]]:
    return [tuple(getattr(row, name) for name in COLUMNS) for row in table.outgoing()]


@pytest.mark.parametrize(
    ("successes", "failures", "state"),
    [
        (0, 0, HealthState.HEALTHY),
        (0, 4, HealthState.HEALTHY),
        (0, 5, HealthState.OPEN),
        (5, 4, HealthState.DEGRADED),
        (5, 5, HealthState.OPEN),
        (9, 1, HealthState.DEGRADED),
        (10, 1, HealthState.HEALTHY),
        (100, 0, HealthState.HEALTHY),
    ],
)
def test_the_state_follows_the_share_of_failures(
    successes: int, failures: int, state: HealthState
) -> None:
    assert table_of(successes, failures).health(ONE, START).state is state


def test_an_endpoint_without_requests_is_healthy_without_measures() -> None:
    measures = {"failure_share": 0.0, "latency": None, "throughput": None}
    assert HealthTable().health(ONE, START).body() == {"state": "healthy", **measures}


@pytest.mark.parametrize(
    ("seconds", "state"), [(59, HealthState.DEGRADED), (60, HealthState.HEALTHY)]
)
def test_outcomes_outside_the_window_do_not_count(seconds: int, state: HealthState) -> None:
    assert table_of(5, 3).health(ONE, START + seconds).state is state


@pytest.mark.parametrize(
    ("seconds", "state"), [(4.999, HealthState.OPEN), (5, HealthState.HALF_OPEN)]
)
def test_an_open_circuit_becomes_half_open_after_its_backoff(
    seconds: float, state: HealthState
) -> None:
    table = table_of(0, 5)
    assert table.health(ONE, START).state is HealthState.OPEN
    assert table.health(ONE, START + seconds).state is state


def test_a_half_open_circuit_admits_one_probe_at_a_time() -> None:
    table = table_of(0, 5)
    table.health(ONE, START)
    assert table.health(ONE, START + 6).state is HealthState.HALF_OPEN
    table.claim(ONE, START + 6)
    assert table.health(ONE, START + 6).state is HealthState.OPEN
    assert table.health(ONE, START + 65).state is HealthState.OPEN
    assert table.health(ONE, START + 66).state is HealthState.HALF_OPEN


def test_a_successful_probe_closes_the_circuit_and_clears_its_failures() -> None:
    table = table_of(0, 5)
    table.health(ONE, START)
    table.claim(ONE, START + 5)
    table.record(ONE, AttemptOutcome.SUCCESS, now=START + 5.5)
    health = table.health(ONE, START + 5.5)
    assert (health.state, health.failure_share) == (HealthState.HEALTHY, 0.0)


def test_failed_probes_double_the_backoff_up_to_a_minute() -> None:
    table = table_of(0, 5)
    table.health(ONE, START)
    now, waits = START, []
    for _ in range(6):
        wait = 0.0
        while table.health(ONE, now + wait).state is not HealthState.HALF_OPEN:
            wait += 1
        now += wait
        waits.append(wait)
        table.claim(ONE, now)
        table.record(ONE, AttemptOutcome.FAILURE, now=now)
    assert waits == [5, 10, 20, 40, 60, 60]


def test_an_open_circuit_does_not_close_without_traffic() -> None:
    table = table_of(0, 5)
    table.health(ONE, START)
    assert table.health(ONE, START + 3600).state is HealthState.HALF_OPEN


@pytest.mark.parametrize(
    ("retry_after", "limited"), [(None, 5), (0, 0), (1, 1), (30, 30), (60, 60), (3600, 60)]
)
def test_a_rate_limit_lasts_for_its_retry_after_up_to_a_minute(
    retry_after: int | None, limited: int
) -> None:
    table = HealthTable()
    table.record(ONE, AttemptOutcome.RATE_LIMITED, now=START, retry_after=retry_after)
    if limited:
        assert table.health(ONE, START + limited - 0.5).state is HealthState.RATE_LIMITED
    assert table.health(ONE, START + limited).state is HealthState.HEALTHY


def test_percentiles_of_latency_and_throughput_are_exact() -> None:
    table = HealthTable()
    for number in range(1, 21):
        table.measure(ONE, number * 10, float(number), now=START)
    health = table.health(ONE, START + 1)
    assert health.latency == {"p50": 100.0, "p75": 150.0, "p90": 180.0, "p99": 200.0}
    assert health.throughput == {"p50": 11.0, "p75": 6.0, "p90": 3.0, "p99": 1.0}


def test_a_measure_does_not_count_as_a_success() -> None:
    table = HealthTable()
    table.record(ONE, AttemptOutcome.SUCCESS, now=START)
    table.measure(ONE, 100, now=START)
    table.measure(ONE, tokens_per_second=42.5, now=START + 8)
    rows = [(row.successes, row.latencies, row.speeds) for row in table.outgoing()]
    assert rows == [(1, [100], []), (0, [], [42.5])]
    assert table.health(ONE, START + 9).throughput == dict.fromkeys(SHARES, 42.5)


def test_a_table_keeps_at_most_32_samples_per_bucket() -> None:
    table = HealthTable()
    for number in range(1000):
        table.record(ONE, AttemptOutcome.SUCCESS, now=START)
        table.measure(ONE, number, 1.0, now=START)
    [row] = table.outgoing()
    assert (row.successes, len(row.latencies), len(row.speeds)) == (1000, 32, 32)


def test_a_table_keeps_at_most_12_unsent_buckets() -> None:
    table = HealthTable()
    for second in range(0, 3600, 5):
        table.record(ONE, AttemptOutcome.SUCCESS, now=START + second)
        table.outgoing()
    assert len(table.outgoing()) == 12


@pytest.mark.parametrize(
    ("error", "has_own_credential", "outcome"),
    [
        (None, False, AttemptOutcome.SUCCESS),
        (None, True, AttemptOutcome.SUCCESS),
        (UpstreamError(), False, AttemptOutcome.FAILURE),
        (UpstreamTimeout(), True, AttemptOutcome.FAILURE),
        (UpstreamOverloaded(upstream_status=529), True, AttemptOutcome.FAILURE),
        (UpstreamRateLimited(upstream_status=429), False, AttemptOutcome.RATE_LIMITED),
        (UpstreamRateLimited(upstream_status=429), True, AttemptOutcome.RATE_LIMITED),
        (UpstreamError(upstream_status=401), True, None),
        (UpstreamError(upstream_status=402), True, None),
        (UpstreamError(upstream_status=403), True, None),
        (UpstreamError(upstream_status=404), True, AttemptOutcome.FAILURE),
        (UpstreamError(upstream_status=401), False, AttemptOutcome.FAILURE),
        (UpstreamTimeout(), False, AttemptOutcome.FAILURE),
        (UnusableAnswer(), False, None),
        (UpstreamOverloaded(upstream_status=529), False, AttemptOutcome.FAILURE),
        (UpstreamRefused(upstream_status=400), False, None),
        (RequestUntranslatable(), False, None),
        (PayloadTooLarge(), False, None),
        (InvalidRequest(), False, None),
        (Forbidden(), True, None),
    ],
)
def test_only_faults_of_the_upstream_count(
    error: GatewayError | None, has_own_credential: bool, outcome: AttemptOutcome | None
) -> None:
    assert classify_attempt(error, has_own_credential=has_own_credential) is outcome


def test_a_released_probe_can_be_claimed_again() -> None:
    table = table_of(0, 5)
    assert not table.claim(ONE, START)
    assert table.claim(ONE, START + 5)
    assert not table.claim(ONE, START + 5)
    table.release(ONE)
    table.release(TWO)
    assert table.claim(ONE, START + 5)


def test_an_own_credential_is_stored_only_after_a_failure() -> None:
    table = HealthTable()
    record(table, 8, 0, is_own=True)
    assert table.outgoing() == []
    record(table, 0, 5, is_own=True)
    # Earlier successes count.
    assert table.health(ONE, START).state is HealthState.DEGRADED
    assert [(row.successes, row.failures) for row in table.outgoing()] == [(8, 5)]


@pytest.fixture
def subjects(monkeypatch: pytest.MonkeyPatch) -> list[uuid.UUID]:
    """Two more subjects than a table remembers."""
    monkeypatch.setattr(health, "_REMEMBERED", 3)
    return [uuid.UUID(int=number) for number in range(1, 6)]


def test_successes_of_own_credentials_are_remembered_within_limits(
    subjects: list[uuid.UUID],
) -> None:
    table = HealthTable()
    for subject in subjects:
        record(table, 1, 4, subject=subject, is_own=True)
    shares = [table.health(subject, START).failure_share for subject in subjects]
    assert shares == [0.8] * 3 + [1.0] * 2
    for seconds, share in ((59, 0.5), (90, 1.0)):
        other = HealthTable()
        record(other, 1, 0, is_own=True)
        other.merge([], START + seconds)
        record(other, 0, 1, now=START + seconds, is_own=True)
        assert other.health(ONE, START + seconds).failure_share == share


def test_an_open_circuit_without_requests_is_forgotten_eventually() -> None:
    table = table_of(0, 5)
    assert table.health(ONE, START).state is HealthState.OPEN
    table.outgoing()
    table.merge([], START + 600)
    assert table.health(ONE, START + 600).state is HealthState.HALF_OPEN
    table.merge([], START + 1000)
    assert table.health(ONE, START + 1000).state is HealthState.HEALTHY


def test_a_table_remembers_a_limited_number_of_idle_open_circuits(
    subjects: list[uuid.UUID],
) -> None:
    table = HealthTable()
    for subject in subjects:
        record(table, 0, 5, subject=subject)
        table.health(subject, START)
    table.outgoing()
    table.merge([], START)
    states = [table.health(subject, START + 5).state for subject in subjects]
    assert states == [HealthState.HEALTHY] * 2 + [HealthState.HALF_OPEN] * 3


def test_each_pair_of_endpoint_and_credential_has_its_own_subject() -> None:
    assert len({ONE, TWO, subject_of(ONE, TWO), subject_of(TWO, ONE), subject_of(ONE, ONE)}) == 5
    assert subject_of(ONE, TWO) == subject_of(ONE, TWO)


def test_sent_outcomes_that_were_not_merged_are_sent_again() -> None:
    table = table_of(2, 1)
    first = table.outgoing()
    table.record(ONE, AttemptOutcome.FAILURE, now=START)
    assert [(row.successes, row.failures) for row in first] == [(2, 1)]
    assert [(row.successes, row.failures) for row in table.outgoing()] == [(2, 2)]


def test_merged_rows_replace_sent_ones() -> None:
    table = table_of(2, 1)
    rows = rows_of(table)
    table.merge(rows, START)
    assert table.outgoing() == []
    assert table.health(ONE, START).failure_share == 1 / 3
    table.merge([], START)
    assert table.health(ONE, START).failure_share == 1 / 3
    table.merge([(*rows[0][:2], 9, 1, *rows[0][4:])], START)
    assert table.health(ONE, START).failure_share == 1 / 10


def test_merged_failures_of_other_workers_open_the_circuit() -> None:
    table = HealthTable()
    table.merge(rows_of(table_of(0, 5)), START)
    assert table.health(ONE, START).state is HealthState.OPEN
    assert table.health(TWO, START).state is HealthState.HEALTHY


@given(
    st.lists(st.tuples(st.sampled_from(AttemptOutcome), st.integers(0, 90)), max_size=60),
    st.integers(1, 4),
)
def test_workers_agree_on_the_share_of_failures(
    events: list[tuple[AttemptOutcome, int]], workers: int
) -> None:
    """Exchanged tables count each outcome once, regardless of the worker that recorded it."""
    tables = [HealthTable() for _ in range(workers)]
    alone = HealthTable()
    for index, (outcome, second) in enumerate(sorted(events, key=lambda event: event[1])):
        if outcome is not AttemptOutcome.RATE_LIMITED:
            tables[index % workers].record(ONE, outcome, now=START + second)
            alone.record(ONE, outcome, now=START + second)
    stored: dict[int, Bucket] = {}
    for table in tables:
        for row in table.outgoing():
            if row.bucket in stored:
                stored[row.bucket].add(row)
            else:
                stored[row.bucket] = row
    rows = [
        tuple(getattr(row, name) for name in COLUMNS)
        for row in stored.values()
        if row.bucket > oldest(START + 90)
    ]
    alone.outgoing()
    shares = []
    for table in [*tables, alone]:
        table.merge([(*row[:4], list(row[4]), list(row[5]), row[6]) for row in rows], START + 90)
        shares.append(table.health(ONE, START + 90).failure_share)
    assert len(set(shares)) == 1


def test_two_workers_share_one_window(db: None) -> None:
    mine, theirs = table_of(1, 2), table_of(1, 2)
    mine.record(TWO, AttemptOutcome.SUCCESS, now=START)
    mine.measure(TWO, 120, 33.5, now=START)
    exchange(mine, START)
    exchange(theirs, START)
    assert theirs.health(ONE, START).failure_share == 4 / 6
    assert theirs.health(TWO, START).latency == dict.fromkeys(SHARES, 120.0)
    assert exchange(mine, START) == exchange(theirs, START)
    assert mine.health(ONE, START).state is HealthState.OPEN


def test_a_newer_bucket_replaces_its_slot_and_late_outcomes_are_dropped(db: None) -> None:
    exchange(table_of(0, 3), START)
    exchange(table_of(0, 2, now=START + 60), START + 60)
    late = table_of(7, 0)
    exchange(late, START + 60)
    with connection.cursor() as cursor:
        sql.execute(cursor, READ_HEALTH, [oldest(START + 60)])
        found = [row[1:4] for row in cursor.fetchall() if row[0] == ONE]
    assert found == [(int(START + 60) // 5, 0, 2)]


def test_outcomes_from_a_clock_that_was_ahead_are_replaced(db: None) -> None:
    exchange(table_of(0, 9, now=START + 7200), START + 7200)
    late = HealthTable()
    assert exchange(late, START) == []
    assert late.health(ONE, START).state is HealthState.HEALTHY
    assert [row[1:4] for row in exchange(table_of(3, 0), START)] == [(int(START) // 5, 3, 0)]


def test_the_database_keeps_at_most_32_samples_per_bucket(db: None) -> None:
    for _ in range(3):
        table = HealthTable()
        for number in range(20):
            table.record(ONE, AttemptOutcome.SUCCESS, now=START)
            table.measure(ONE, number, float(number), now=START)
        [row] = exchange(table, START)
    assert (row[2], len(row[4]), len(row[5])) == (60, 32, 32)


def test_workers_share_a_rate_limit(db: None) -> None:
    table = HealthTable()
    table.record(ONE, AttemptOutcome.RATE_LIMITED, now=START, retry_after=20)
    exchange(table, START)
    other = HealthTable()
    exchange(other, START)
    assert other.health(ONE, START + 19).state is HealthState.RATE_LIMITED
    assert other.health(ONE, START + 20).state is HealthState.HEALTHY


def test_clear_health_deletes_old_rows(db: None) -> None:
    now = time.time()
    exchange(table_of(0, 3, now=now), now)
    old = table_of(0, 3, now=now - 720)
    with connection.cursor() as cursor:
        rows = msgspec.json.encode(old.outgoing()).decode().replace(str(ONE), str(TWO))
        sql.execute(cursor, EXCHANGE_HEALTH, [rows, 0, 0])
    clear_health()
    found = EndpointHealth.objects.filter(endpoint_id__in=(ONE, TWO))
    assert list(found.values_list("endpoint_id", flat=True)) == [ONE]
