"""Partitions are made ahead, take what lies in their span, and leave; odd rows are kept apart."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.db import connection, connections, transaction

from config.partitions.declarations import Partitioning, partitionings, table_of
from config.partitions.metrics import PartitionCollector
from config.partitions.spans import MONTH, QUARTER, YEAR, Span
from config.partitions.tables import (
    TableLocked,
    count_odd,
    list_partitions,
    make_ahead,
    make_all_ahead,
    read_now,
)
from inference.models import Generation
from tests.support.database.kept import MONTH as MONTH_OF_RUN

NOTES = Partitioning("notes", "at", storage={"fillfactor": 50})
NOW = datetime(2026, 11, 23, 9, 30, tzinfo=UTC)
MONTHS = [
    datetime(year, month, 1, tzinfo=UTC)
    for year, month in ((2026, 11), (2026, 12), (2027, 1), (2027, 2))
]


def run(statement: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []


@pytest.fixture
def notes(transactional_db: None) -> Iterator[None]:
    """An empty divided table without partitions, append-only."""
    run("CREATE TABLE notes (id int, at timestamptz, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)")
    run(
        "CREATE FUNCTION no_delete() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'append-only'; END $$"
    )
    run("CREATE TRIGGER no_delete BEFORE DELETE ON notes FOR EACH ROW EXECUTE FUNCTION no_delete()")
    yield
    run("DROP TABLE notes")
    run("DROP TABLE IF EXISTS notes_p20261101")
    run("DROP FUNCTION no_delete")


def places() -> list[tuple[object, ...]]:
    return run("SELECT id, tableoid::regclass::text FROM notes ORDER BY id")


def note(number: int, moment: datetime) -> None:
    run(f"INSERT INTO notes VALUES ({number}, '{moment.isoformat()}')")


@pytest.mark.parametrize(
    ("span", "begin", "end"),
    [
        (MONTH, datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)),
        (QUARTER, datetime(2026, 10, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
        (YEAR, datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_span_begins_with_a_month(span: Span, begin: datetime, end: datetime) -> None:
    assert span.begin(NOW) == begin
    assert span.following(begin) == end


def test_the_present_span_and_two_more_are_made_once(notes: None) -> None:
    assert make_ahead(NOTES, NOW) == 4
    assert make_ahead(NOTES, NOW) == 0
    *made, odd = list_partitions(NOTES)
    assert [(each.begin, each.end) for each in made] == list(pairwise(MONTHS))
    assert [each.name for each in made] == ["notes_p20261101", "notes_p20261201", "notes_p20270101"]
    assert odd.is_default
    assert run(
        "SELECT DISTINCT reloptions FROM pg_class WHERE relname LIKE 'notes_%' AND relkind = 'r'"
    ) == [(["fillfactor=50"],)]
    assert {table_of(each.name) for each in (*made, odd)} == {"notes"}


def test_two_spans_are_ahead_of_a_first_partition_that_has_the_next_one(notes: None) -> None:
    """As it was made in the last week of a month."""
    run(
        "CREATE TABLE notes_until_20270201 PARTITION OF notes "
        "FOR VALUES FROM (MINVALUE) TO ('2027-02-01 00:00+00')"
    )
    now = datetime(2026, 12, 28, tzinfo=UTC)
    assert [make_ahead(NOTES, now), make_ahead(NOTES, now)] == [3, 0]
    *made, odd = list_partitions(NOTES)
    march = datetime(2027, 3, 1, tzinfo=UTC)
    assert [each.begin for each in made] == [None, MONTHS[3], march]
    assert odd.is_default


def test_a_longer_span_begins_where_the_shorter_ones_end(notes: None) -> None:
    make_ahead(NOTES, NOW)
    quarterly = Partitioning("notes", "at", QUARTER)
    assert make_ahead(quarterly, NOW) == 3
    bounds = [(each.begin, each.end) for each in list_partitions(quarterly) if not each.is_default]
    assert [end for _, end in bounds][:-1] == [begin for begin, _ in bounds][1:]


def test_a_row_without_a_partition_is_kept_and_moves_to_it_later(notes: None) -> None:
    make_ahead(NOTES, NOW - timedelta(days=200))
    note(1, NOW)
    note(2, datetime(2038, 1, 1, tzinfo=UTC))
    assert places() == [(1, "notes_default"), (2, "notes_default")]
    assert count_odd(NOTES) == 2
    make_ahead(NOTES, NOW)
    assert places() == [(1, "notes_p20261101"), (2, "notes_default")]
    with pytest.raises(Exception, match="append-only"):
        run("DELETE FROM notes")


def test_rows_of_a_time_without_work_get_the_partition_of_their_month(notes: None) -> None:
    make_ahead(NOTES, NOW - timedelta(days=200))
    note(1, datetime(2026, 9, 23, tzinfo=UTC))
    note(2, datetime(2026, 10, 2, tzinfo=UTC))
    # Kept when their partition left: those before the first partition, and those of a condition.
    note(3, datetime(2026, 1, 1, tzinfo=UTC))
    keeping = Partitioning("notes", "at", keeps="id = 2")
    assert make_ahead(keeping, NOW) == 4
    assert places() == [(1, "notes_p20260901"), (2, "notes_default"), (3, "notes_default")]
    assert make_ahead(keeping, NOW) == 0
    assert make_ahead(NOTES, NOW) == 1
    assert places() == [(1, "notes_p20260901"), (2, "notes_p20261001"), (3, "notes_default")]
    assert make_ahead(NOTES, NOW) == 0


def test_many_rows_without_a_partition_stay_and_the_next_spans_are_made(
    notes: None, caplog: pytest.LogCaptureFixture
) -> None:
    make_ahead(NOTES, NOW - timedelta(days=200))
    run(f"INSERT INTO notes SELECT n, '{NOW.isoformat()}' FROM generate_series(1, 20001) AS n")
    with caplog.at_level(logging.ERROR, "causeway.partitions"):
        assert make_ahead(NOTES, NOW) == 2
    assert "notes_default has more than 20000 rows of notes_p20261101" in caplog.text
    assert run("SELECT count(*) FROM notes_default") == [(20001,)]
    later = NOW + timedelta(days=10)
    assert make_ahead(NOTES, later) == 1
    assert make_ahead(NOTES, later, most=10**9) == 1
    assert run("SELECT count(*) FROM notes_p20261101") == [(20001,)]


def test_a_locked_table_is_left_alone(notes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    make_ahead(NOTES, NOW)
    monkeypatch.setattr("config.partitions.tables._TRIES", 2)
    before, later = list_partitions(NOTES), NOW + timedelta(days=100)
    is_locked, is_tried = threading.Event(), threading.Event()

    def read() -> None:
        with transaction.atomic():
            run("SELECT count(*) FROM notes")
            is_locked.set()
            is_tried.wait(30)
        connections.close_all()

    reader = threading.Thread(target=read)
    reader.start()
    assert is_locked.wait(30)
    with pytest.raises(TableLocked, match="notes is locked by another transaction"):
        make_ahead(NOTES, later)
    is_tried.set()
    reader.join()
    assert list_partitions(NOTES) == before
    assert make_ahead(NOTES, later) == 3


def test_each_declared_table_is_that_of_its_model_and_has_partitions(db: None) -> None:
    assert Generation.partitioning in partitionings()
    assert Generation.partitioning.table == Generation._meta.db_table
    if os.environ[MONTH_OF_RUN] != f"{read_now():%Y-%m}":
        # A month has ended since the database was migrated.
        make_all_ahead()
    for partitioning in partitionings():
        *partitions, default = list_partitions(partitioning)
        assert default.is_default
        span, ends = partitioning.span, [each.end for each in partitions]
        # The first partition holds the span in which the run began, or in its last week the next
        # one too.
        began = datetime.fromisoformat(f"{os.environ[MONTH_OF_RUN]}-01T00:00Z")
        end = span.following(span.begin(began))
        assert ends[0] in (end, span.following(end))
        assert ends[1:] == [span.following(each) for each in ends[:-1]]
        assert [each.begin for each in partitions] == [None, *ends[:-1]]
        assert count_later(partitioning) == 2
    assert make_all_ahead() == 0


def count_later(partitioning: Partitioning) -> int:
    now = read_now()
    begins = [each.begin for each in list_partitions(partitioning) if each.begin is not None]
    return sum(begin > now for begin in begins)


def test_metrics_say_what_is_ahead_and_what_is_odd(db: None) -> None:
    if os.environ[MONTH_OF_RUN] != f"{read_now():%Y-%m}":
        make_all_ahead()
    ahead, odd = PartitionCollector().collect()
    later = {each.table: count_later(each) for each in partitionings()}
    assert {sample.labels["table"]: sample.value for sample in ahead.samples} == later
    assert set(later.values()) == {2}
    assert {sample.value for sample in odd.samples} == {0}


def test_a_gap_before_a_partition_is_filled_and_nothing_overlaps(notes: None) -> None:
    make_ahead(NOTES, MONTHS[3])
    make_ahead(NOTES, MONTHS[0])
    bounds = [(each.begin, each.end) for each in list_partitions(NOTES) if not each.is_default]
    assert len(bounds) == 6
    assert [end for _, end in bounds][:-1] == [begin for begin, _ in bounds][1:]
