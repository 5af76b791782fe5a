"""Lets ranges of partitions leave that are older than ``RETENTION_DAYS``.

A range is sealed, archived, read back, folded, detached and dropped. Everything up to the fold can
be done again: a process that dies leaves a sealed range and perhaps a file, and the next one goes
on with both. The fold, the detachment and the drop are one transaction.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Final

import msgspec
from django.conf import settings
from django.db import DatabaseError, connection, transaction
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from psycopg import sql

from billing import folds
from billing.models import Fold, Transfer
from config.clocks.leases import Lease
from config.partitions.departures import Departure
from config.partitions.tables import TableLocked, has_time, read_now
from inference.archive.files import ArchivedFile, archive_table
from inference.archive.plans import Place
from inference.archive.ranges import Range, TablePartition, find_obstacle, list_due
from inference.archive.sealing import are_sealed, list_sealed, run_when_free, seal, unseal
from inference.archive.stores import Store, StoreFailed, open_store
from inference.models import Generation

logger = logging.getLogger("causeway.retention")

# The name of the duty.
ARCHIVE_PARTITIONS: Final = "archive_partitions"
# Only one process folds at a time; the lease of the duty almost always sees to that.
_LOCK: Final = "LOCK TABLE billing_fold IN SHARE ROW EXCLUSIVE MODE"
_OPEN_ACCOUNTS: Final = """
INSERT INTO billing_opening (fold_id, account_id, posted_debits, posted_credits)
SELECT %s, account_id, sum(debits), sum(credits)
FROM (
    SELECT debit_id AS account_id, posted_nano AS debits, 0 AS credits FROM ({transfers}) AS t
    UNION ALL
    SELECT credit_id, 0, posted_nano FROM ({transfers}) AS t
) AS sides
GROUP BY account_id
"""
_OPEN_METERS: Final = """
INSERT INTO billing_meteropening (fold_id, subject_id, cost, byok)
SELECT %s, s.subject_id, sum(g.cost_nano),
       least(
           coalesce(sum(g.upstream_cost_nano) FILTER (WHERE g.is_byok), 0), 9223372036854775807
       )
FROM ({generations}) AS g
CROSS JOIN LATERAL unnest(
    ARRAY[g.api_key_id, g.workspace_id, g.member_id] || g.limit_subjects
) AS s (subject_id)
WHERE s.subject_id IS NOT NULL
GROUP BY s.subject_id
"""
_POSTED: Final = (
    "SELECT debit_id, credit_id, posted_nano FROM {name} WHERE status = 'posted' AND {has_time}"
)
_ENDED: Final = (
    "SELECT api_key_id, workspace_id, member_id, limit_subjects, cost_nano, upstream_cost_nano, "
    "is_byok FROM {name}"
)
# Finding the rows that stay reads a whole partition, so it comes before the tables are locked.
_FIND_KEPT: Final = (
    "CREATE TEMPORARY TABLE {kept} ON COMMIT DROP AS "
    "SELECT * FROM {name} WHERE ({has_time}) IS NOT TRUE OR ({keeps}) IS TRUE"
)
_KEEP: Final = "INSERT INTO {odd} SELECT * FROM {kept}"


class MustStay(Exception):
    """The range cannot leave now; the message says why. Nothing was dropped."""


def archive_due(stayed: list[str] | None = None) -> int:
    """Lets everything leave that is older than ``RETENTION_DAYS``; returns the number of ranges.

    The oldest range of a kind leaves first. One that must stay keeps the later ones of its kind,
    because folds follow each other in the order of time. ``stayed`` gets the names of those whose
    files could not be stored.
    """
    stayed = [] if stayed is None else stayed
    due = {kind: list_due(kind, days, read_now()) for kind, days in settings.RETENTION_DAYS.items()}
    _unseal_others(due.values())
    if due and settings.ARCHIVE_PLACE is not None:
        _clear(settings.ARCHIVE_PLACE)
    return sum(_archive(ranges, stayed) for ranges in due.values())


def _clear(place: Place) -> None:
    """Removes unfinished files of processes that died; without success everything else goes on."""
    try:
        open_store(place).clear()
    except StoreFailed as exc:
        logger.warning("unfinished files of the archive stay: %s", exc)


def _archive(ranges: list[Range], stayed: list[str]) -> int:
    store = None if settings.ARCHIVE_PLACE is None else open_store(settings.ARCHIVE_PLACE)
    for done, range_ in enumerate(ranges):
        try:
            files = _leave(range_, store)
        except (MustStay, TableLocked) as exc:
            logger.warning("%s", exc)
            return done
        except StoreFailed as exc:
            logger.error("%s %s were not archived and stay: %s", range_.kind, range_.name, exc)
            stayed.append(f"{range_.kind} {range_.name}")
            return done
        logger.info(
            "%s %s have left: %d rows in %d files",
            range_.kind, range_.name, sum(file.rows for file in files), len(files),
        )  # fmt: skip
        Lease.objects.note_progress(ARCHIVE_PARTITIONS)
    return len(ranges)


def _unseal_others(due: Iterable[list[Range]]) -> None:
    """Opens partitions that a process which died has sealed, and that are not due any more."""
    names = {part.partition.name for ranges in due for range_ in ranges for part in range_.parts}
    unseal(list_sealed() - names)


def _leave(range_: Range, store: Store | None) -> list[ArchivedFile]:
    """Archives and drops a range; returns its files, which its fold or departure names too.

    Raises :class:`MustStay`, and :class:`StoreFailed` if the archive does not give back what was
    written. Then the rows can be changed again.
    """
    _require_free(range_)
    names = [part.partition.name for part in range_.parts]
    try:
        seal(range_.parts)
        _require_free(range_)
        files = [
            archive_table(store, part.table, f"{part.partitioning.table}/{range_.name}")
            for part in range_.parts
        ]
        _finish(range_, files)
    except Exception:
        unseal(names)
        raise
    return files


def _require_free(range_: Range) -> None:
    """Raises :class:`MustStay` with the obstacle of a range."""
    if obstacle := find_obstacle(range_):
        raise MustStay(f"{range_.kind} {range_.name} stay: {obstacle}")


def _finish(range_: Range, files: list[ArchivedFile]) -> None:
    """Stores the sums of a range of generations, detaches its partitions, and drops them."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_LOCK)
        if not are_sealed([part.partition.name for part in range_.parts]):
            raise MustStay(f"{range_.kind} {range_.name} stay: another process handles them")
        if range_.kind == "generations":
            _fold(range_, files)
        else:
            _record(range_, files)
        for part in filter(_has_kept, range_.parts):
            cursor.execute(_write(_FIND_KEPT, part))
        run_when_free(range_.parts[0].partitioning.table, lambda: _drop(range_))


def _record(range_: Range, files: list[ArchivedFile]) -> None:
    departure = Departure(
        kind=range_.kind,
        begin=range_.begin,
        end=range_.end,
        files=[msgspec.to_builtins(file) for file in files],
    )
    departure.make_seal()
    departure.save(force_insert=True)


def _fold(range_: Range, files: list[ArchivedFile]) -> Fold:
    last = Fold.objects.order_by("number").last()
    fold = Fold(
        number=last.number + 1 if last else 1,
        begin=range_.begin_id if last is None else max(range_.begin_id, last.end),
        end=range_.end_id,
        files=[msgspec.to_builtins(file) for file in files],
        folded_at=read_now(),
    )
    with connection.cursor() as cursor:
        for query, inner, model in (
            (_OPEN_ACCOUNTS, _POSTED, Transfer),
            (_OPEN_METERS, _ENDED, Generation),
        ):
            rows = sql.SQL(" UNION ALL ").join(_write(inner, part) for part in range_.of(model))
            name = "transfers" if model is Transfer else "generations"
            cursor.execute(sql.SQL(query).format(**{name: rows}), [fold.number])
    folds.seal(fold)
    fold.save(force_insert=True)
    return fold


def _drop(range_: Range) -> None:
    """Detaches and drops the partitions; also locks the tables to which foreign keys refer."""
    with connection.cursor() as cursor:
        for part in range_.parts:
            cursor.execute(
                sql.SQL("ALTER TABLE {} DETACH PARTITION {}").format(
                    sql.Identifier(part.partitioning.table), sql.Identifier(part.partition.name)
                )
            )
        for part in range_.parts:
            if _has_kept(part):
                cursor.execute(_write(_KEEP, part))
            cursor.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(part.partition.name)))


def _has_kept(part: TablePartition) -> bool:
    """Returns whether rows of a partition may stay, for the partition for odd rows."""
    return part.partitioning.values is not None or bool(part.partitioning.keeps)


def _write(query: str, part: TablePartition) -> sql.Composed:
    """Returns a query over one partition; transfers without a generation are no part of a fold."""
    return sql.SQL(query).format(
        name=sql.Identifier(part.partition.name),
        odd=sql.Identifier(part.partitioning.default),
        kept=sql.Identifier(f"kept_{part.partition.name}"),
        has_time=has_time(part.partitioning),
        # A condition that a model declares.
        keeps=sql.SQL(part.partitioning.keeps or "FALSE"),
    )


class RetentionCollector(Collector):
    """Collects for how long the oldest range of each kind should have left.

    Collects nothing while the database is unreachable, so that other metrics are still served.
    """

    def collect(self) -> Iterator[GaugeMetricFamily]:
        overdue = GaugeMetricFamily(
            "causeway_retention_overdue_seconds",
            "How long ago the oldest partition should have left by RETENTION_DAYS; 0 for none.",
            labels=("kind",),
        )
        try:
            now = read_now()
            for kind, days in settings.RETENTION_DAYS.items():
                ranges = list_due(kind, days, now)
                since = ranges[0].end + timedelta(days=days) if ranges else now
                overdue.add_metric((kind,), (now - since).total_seconds())
        except DatabaseError:
            return
        yield overdue
