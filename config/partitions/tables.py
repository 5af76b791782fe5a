"""Lists, makes and detaches the partitions of a table.

A new partition is made as a table of its own and then attached: requests go on meanwhile. Attaching
locks the partition for rows of no span, which every statement on the table uses, so it waits only
briefly for the lock and is tried again. Rows that were stored before their partition existed are in
the partition for rows of no span, and move when it is made.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final

from django.db import OperationalError, connection, transaction
from django.db.backends.utils import CursorWrapper
from psycopg import sql
from psycopg.errors import DeadlockDetected, LockNotAvailable

from config.partitions.declarations import Partitioning, partitionings

logger = logging.getLogger("causeway.partitions")

# The present span has a partition, and this number of spans after it.
SPANS_AHEAD: Final = 2
# Nobody reads the number of odd rows beyond this.
MANY_ROWS: Final = 1_000
# Statements of the data plane wait for a lock for at most 200 ms. Whoever waits longer than they do
# for an exclusive lock fails them.
_LOCK_MS: Final = 100
_PAUSE_SECONDS: Final = 0.5
_TRIES: Final = 60
# Moving a row takes some ten microseconds, and the table is locked meanwhile.
_MOST_MOVED: Final = 20_000
_BLOCKED: Final = (LockNotAvailable, DeadlockDetected)

_LIST: Final = """
SELECT parent.relname, c.relname, pg_get_expr(c.relpartbound, c.oid), pg_total_relation_size(c.oid)
FROM pg_inherits AS i
JOIN pg_class AS c ON c.oid = i.inhrelid
JOIN pg_class AS parent ON parent.oid = i.inhparent
WHERE i.inhparent = ANY(SELECT to_regclass(name) FROM unnest(%s::text[]) AS name)
    AND NOT i.inhdetachpending
"""
_BOUNDS: Final = re.compile(r"FOR VALUES FROM \((MINVALUE|.+)\) TO \((MAXVALUE|.+)\)")
_ANALYZE_DUE: Final = """
SELECT greatest(last_analyze, last_autoanalyze) > now() - interval '7 days'
FROM pg_stat_user_tables WHERE relid = to_regclass(%s)
"""


class TableLocked(Exception):
    """Other transactions kept a table locked; nothing has changed."""


class TooManyRows(Exception):
    """The rows of a span cannot move to its partition, because the table would be locked long."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition and the moments between which its rows lie.

    ``begin`` or ``end`` is ``None`` for a partition without that bound; ``is_default`` is the one
    for rows of no span. ``size`` is in bytes, with indexes.
    """

    name: str
    begin: datetime | None
    end: datetime | None
    is_default: bool
    size: int

    def contains(self, moment: datetime) -> bool:
        """Returns whether rows of a moment are in this partition by its bounds."""
        return (
            not self.is_default
            and (self.begin is None or self.begin <= moment)
            and (self.end is None or moment < self.end)
        )


def list_partitions(partitioning: Partitioning) -> list[Partition]:
    """Returns the attached partitions by time; the one for rows of no span is the last."""
    [found] = list_all_partitions([partitioning])
    return found


def list_all_partitions(tables: Sequence[Partitioning]) -> list[list[Partition]]:
    """Returns what :func:`list_partitions` returns for each table, by one statement for all."""
    found: dict[str, list[Partition]] = {each.table: [] for each in tables}
    declared = {each.table: each for each in tables}
    with connection.cursor() as cursor:
        cursor.execute(_LIST, [list(found)])
        for table, name, bounds, size in cursor.fetchall():
            begin_and_end = _read_bounds(declared[table], bounds)
            found[table].append(Partition(name, *begin_and_end, bounds == "DEFAULT", size))
    return [sorted(found[each.table], key=_order) for each in tables]


def make_ahead(
    partitioning: Partitioning, now: datetime | None = None, *, most: int = _MOST_MOVED
) -> int:
    """Makes the missing partitions of the present span and two that begin later.

    Then it makes those of past spans that have rows, from a time without ``work``: these could not
    leave otherwise. A span with more than ``most`` rows is left out. Returns the number of those
    that it made. Raises :class:`TableLocked` if other transactions hold the table for half a
    minute.
    """
    made = 0
    if not _exists(partitioning.default):
        _retry(partitioning.table, lambda: _attach_default(partitioning))
        made += 1
    now = now or read_now()
    begin = present = partitioning.span.begin(now)
    for _ in range(SPANS_AHEAD + 1):
        end = partitioning.span.following(begin)
        made += _make(partitioning, begin, end, most)
        begin = end
    # The first partition of an installation may reach into the next span.
    if count_ahead(partitioning, now) < SPANS_AHEAD:
        made += _make(partitioning, begin, partitioning.span.following(begin), most)
    for since, until in _find_past(partitioning, present):
        made += _make(partitioning, since, until, most)
    return made


def count_ahead(partitioning: Partitioning, now: datetime) -> int:
    """Returns the number of partitions that begin after a moment."""
    begins = [each.begin for each in list_partitions(partitioning)]
    return sum(begin is not None and begin > now for begin in begins)


def make_all_ahead(most: int = _MOST_MOVED) -> int:
    """Makes the missing partitions of every table, reports odd rows; returns the number made.

    ``most`` is how many rows of a span may move while others wait for the table.
    """
    made = 0
    for partitioning in partitionings():
        # The tables of an app that is not migrated yet.
        if not _exists(partitioning.table):
            continue
        try:
            made += make_ahead(partitioning, most=most)
        except TableLocked as exc:
            logger.warning("%s", exc)
        if odd := count_odd(partitioning):
            logger.warning(
                "%s has %s%d rows whose %s lies in no partition, from hosts with a wrong clock or "
                "from a time without work; they are in %s",
                partitioning.table,
                "at least " if odd == MANY_ROWS else "",
                odd,
                partitioning.column,
                partitioning.default,
            )
        _analyze(partitioning.table)
    return made


def count_odd(partitioning: Partitioning) -> int:
    """Returns the number of odd rows that have a time, at most ``MANY_ROWS``.

    Rows that were kept when their partition left lie before the first partition.
    """
    condition = has_time(partitioning)
    begin = list_partitions(partitioning)[0].begin if partitioning.keeps else None
    if begin is not None:
        condition = sql.SQL("{} >= {}").format(
            sql.Identifier(partitioning.column), sql.Literal(partitioning.write_bound(begin))
        )
    query = sql.SQL("SELECT count(*) FROM (SELECT FROM {} WHERE {} LIMIT {}) AS odd").format(
        sql.Identifier(partitioning.default), condition, sql.Literal(MANY_ROWS)
    )
    with connection.cursor() as cursor:
        cursor.execute(query)
        [count] = cursor.fetchone()
    return int(count)


def has_time(partitioning: Partitioning) -> sql.Composable:
    """Returns the condition of the rows that have a time, by the value of their column."""
    if partitioning.values is None:
        return sql.SQL("TRUE")
    lowest, above = map(sql.Literal, partitioning.values)
    column = sql.Identifier(partitioning.column)
    return sql.SQL("({0} >= {1} AND {0} < {2})").format(column, lowest, above)


def create_like(cursor: CursorWrapper, partitioning: Partitioning, name: str) -> None:
    """Creates a table with the columns and checks of a partitioned one, and with its storage."""
    options = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(key), sql.Literal(value))
        for key, value in partitioning.storage.items()
    )
    cursor.execute(
        sql.SQL(
            "CREATE TABLE {} (LIKE {} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING GENERATED "
            "INCLUDING STORAGE) {}"
        ).format(
            sql.Identifier(name),
            sql.Identifier(partitioning.table),
            sql.SQL("WITH ({})").format(options) if partitioning.storage else sql.SQL(""),
        )
    )


def read_now() -> datetime:
    """Returns the database's time."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        [now] = cursor.fetchone()
    return now


def has_past(partitioning: Partitioning) -> bool:
    """Returns whether rows of spans that have begun wait for a partition."""
    return next(_find_past(partitioning, read_now()), None) is not None


def _find_past(
    partitioning: Partitioning, present: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """Yields the past spans, or their parts, that have odd rows and no partition.

    What lies before the first partition has left: a partition before it would leave once more.
    """
    first = list_partitions(partitioning)[0]
    if first.end is None or first.end >= present:
        return
    for begin, end in list(_find_gaps(partitioning, first.end, present)):
        while begin < end:
            until = min(partitioning.span.following(partitioning.span.begin(begin)), end)
            if _has_odd(partitioning, begin, until):
                yield begin, until
            begin = until


def _has_odd(partitioning: Partitioning, begin: datetime, end: datetime) -> bool:
    """Returns whether odd rows lie between two moments, but for those that are kept for ever."""
    query = sql.SQL(
        "SELECT EXISTS (SELECT FROM {odd} "
        "WHERE {column} >= {begin} AND {column} < {end} AND ({keeps}) IS NOT TRUE)"
    ).format(
        odd=sql.Identifier(partitioning.default),
        column=sql.Identifier(partitioning.column),
        begin=sql.Literal(partitioning.write_bound(begin)),
        end=sql.Literal(partitioning.write_bound(end)),
        # A condition that a model declares.
        keeps=sql.SQL(partitioning.keeps or "FALSE"),
    )
    with connection.cursor() as cursor:
        cursor.execute(query)
        return bool(cursor.fetchone()[0])


def _make(partitioning: Partitioning, begin: datetime, end: datetime, most: int) -> int:
    """Makes the partitions that a span lacks: usually one, or what shorter spans leave free."""
    made = 0
    for since, until in list(_find_gaps(partitioning, begin, end)):
        try:
            _retry(partitioning.table, partial(_attach, partitioning, since, until, most))
        except TooManyRows as exc:
            logger.error("%s", exc)
            continue
        logger.info("%s: made the partition from %s to %s", partitioning.table, since, until)
        made += 1
    return made


def _find_gaps(
    partitioning: Partitioning, begin: datetime, end: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """Yields the parts of a span that no partition covers."""
    for each in list_partitions(partitioning):
        if each.is_default or (each.end is not None and each.end <= begin):
            continue
        if each.begin is not None and each.begin > begin:
            yield begin, min(each.begin, end)
        begin = end if each.end is None else each.end
        if begin >= end:
            return
    yield begin, end


def _attach_default(partitioning: Partitioning) -> None:
    def run(cursor: CursorWrapper) -> None:
        create_like(cursor, partitioning, partitioning.default)
        cursor.execute(
            sql.SQL("ALTER TABLE {} ATTACH PARTITION {} DEFAULT").format(
                sql.Identifier(partitioning.table), sql.Identifier(partitioning.default)
            )
        )

    _run_locking(run)


def _attach(partitioning: Partitioning, begin: datetime, end: datetime, most: int) -> None:
    """Makes and attaches a partition, with the rows of its span that were stored before.

    Raises :class:`TooManyRows` if these are more than ``most``.
    """
    name = partitioning.name_from(begin)
    bounds = [partitioning.write_bound(moment) for moment in (begin, end)]
    names = {
        "table": sql.Identifier(partitioning.table),
        "name": sql.Identifier(name),
        "odd": sql.Identifier(partitioning.default),
        "column": sql.Identifier(partitioning.column),
        "begin": sql.Literal(bounds[0]),
        "end": sql.Literal(bounds[1]),
        "most": sql.Literal(most),
    }

    def run(cursor: CursorWrapper) -> None:
        create_like(cursor, partitioning, name)
        where = sql.SQL("{column} >= {begin} AND {column} < {end}").format(**names)
        cursor.execute(sql.SQL("LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE").format(**names))
        cursor.execute(sql.SQL("LOCK TABLE {odd} IN ACCESS EXCLUSIVE MODE").format(**names))
        cursor.execute(
            sql.SQL(
                "SELECT count(*) FROM (SELECT FROM {odd} WHERE {where} LIMIT {most} + 1) AS odd"
            ).format(where=where, **names)
        )
        [moved] = cursor.fetchone()
        if moved > most:
            raise TooManyRows(
                f"{partitioning.default} has more than {most} rows of {name}, because work did not "
                "run: they stay there whatever RETENTION_DAYS says, and other spans have their "
                "partitions. To move them, stop serve and let manage.py shell call "
                "make_all_ahead(10**9) of config.partitions.tables"
            )
        if moved:
            _move(cursor, names, where)
        cursor.execute(
            sql.SQL(
                "ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({begin}) TO ({end})"
            ).format(**names)
        )

    _run_locking(run)


def _move(cursor: CursorWrapper, names: dict[str, sql.Composable], where: sql.Composable) -> None:
    """Moves odd rows; the triggers that refuse to delete rows do not mean a move."""
    for statement in (
        "ALTER TABLE {odd} DISABLE TRIGGER USER",
        "INSERT INTO {name} SELECT * FROM {odd} WHERE {where}",
        "DELETE FROM {odd} WHERE {where}",
        "ALTER TABLE {odd} ENABLE TRIGGER USER",
    ):
        cursor.execute(sql.SQL(statement).format(where=where, **names))


def _run_locking(run: Callable[[CursorWrapper], None]) -> None:
    """Runs statements in a transaction that waits only briefly for each lock."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
        run(cursor)


def _retry(table: str, run: Callable[[], None]) -> None:
    for _ in range(_TRIES):
        try:
            return run()
        except OperationalError as exc:
            if not isinstance(exc.__cause__, _BLOCKED):
                raise
            time.sleep(_PAUSE_SECONDS)
    raise TableLocked(
        f"{table} is locked by another transaction; docs/database.md says how to find it. "
        "work tries again"
    )


def _analyze(table: str) -> None:
    """Analyzes a table once a week: PostgreSQL itself only analyzes the partitions."""
    with connection.cursor() as cursor:
        cursor.execute(_ANALYZE_DUE, [table])
        [is_analyzed] = cursor.fetchone() or [None]
        if not is_analyzed:
            cursor.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(table)))


def _exists(table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [table])
        return bool(cursor.fetchone()[0])


def _read_bounds(
    partitioning: Partitioning, bounds: str
) -> tuple[datetime | None, datetime | None]:
    """Returns the moments of the bounds that PostgreSQL prints for a partition."""
    found = _BOUNDS.fullmatch(bounds)
    if found is None:
        return None, None
    begin, end = (
        None if text in ("MINVALUE", "MAXVALUE") else partitioning.read_bound(text.strip("'"))
        for text in found.groups()
    )
    return begin, end


def _order(partition: Partition) -> tuple[bool, bool, float]:
    begin = partition.begin
    return partition.is_default, begin is not None, 0.0 if begin is None else begin.timestamp()
