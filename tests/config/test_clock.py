"""The database's clock as a process knows it, and what a host with a wrong clock says."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from config.clocks.clock import DatabaseClock, clock
from config.clocks.report import ClockReport
from config.sql import measure_clock
from tests.support.machine.logs import own_lines


@pytest.fixture
def off_by(monkeypatch: pytest.MonkeyPatch) -> object:
    """Sets how many seconds the clock of this host is ahead of the database's."""

    def set_offset(seconds: float) -> None:
        ahead = time.time() - time.monotonic() - seconds
        monkeypatch.setattr(clock, "_ahead", ahead)
        monkeypatch.setattr(clock, "is_measured", True)

    return set_offset


def test_a_clock_that_was_never_measured_is_that_of_the_host() -> None:
    found = DatabaseClock()
    assert found.offset() == 0.0
    assert abs(found.now() - datetime.now(UTC)) < timedelta(seconds=5)


def test_the_first_answer_sets_the_clock() -> None:
    found = DatabaseClock()
    there = datetime(2020, 2, 29, 12, tzinfo=UTC)
    found.observe(there, time.monotonic())
    assert there <= found.now() < there + timedelta(minutes=1)
    assert found.is_measured


def test_a_slow_answer_corrects_only_what_it_contradicts() -> None:
    found = DatabaseClock()
    now = time.monotonic()
    found.observe(datetime.fromtimestamp(1_000_000, UTC), now)
    exact = found._ahead
    # The answer took a hundred seconds, so it may have been made in any of them.
    found.observe(datetime.fromtimestamp(1_000_000, UTC), now - 100)
    assert found._ahead == exact
    # The database's clock has moved by an hour.
    found.observe(datetime.fromtimestamp(1_003_600, UTC), now - 100)
    assert 3500 < found._ahead - exact < 3601


def test_the_clock_is_read_inside_a_long_transaction(db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.05)")
    measure_clock()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        [there] = cursor.fetchone()
    assert abs(clock.now() - there) < timedelta(seconds=5)


def test_an_offset_is_logged_when_it_begins_moves_and_ends(
    off_by, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "causeway.clock")
    report = ClockReport()

    def said(offset: float) -> list[str]:
        caplog.clear()
        off_by(offset)
        report.update()
        return own_lines(caplog)

    assert said(0.9) == []
    [text] = said(7200)
    assert text.startswith("the clock of this host is 7200.0 s ahead of the database's;")
    assert said(7200.5) == []
    [text] = said(7300)
    assert text.startswith("the clock of this host is 7300.0 s ahead")
    [text] = said(-2)
    assert text.startswith("the clock of this host is 2.0 s behind the database's;")
    # Near the limit it says nothing again and again.
    assert said(-0.9) == said(-1.1) == []
    assert said(0.1) == ["the clock of this host agrees with the database's again"]
    assert said(0.1) == []


def test_probes_describe_an_offset(off_by) -> None:
    report = ClockReport()
    off_by(0.5)
    assert report.describe() is None
    off_by(-3)
    described = report.describe()
    assert described is not None
    assert round(described["offset_seconds"]) == -3
    assert described["message"].startswith("the clock of this host is 3.0 s behind the database's")
