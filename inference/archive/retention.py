"""The duty that lets old partitions leave, as ``RETENTION_DAYS`` says."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import timedelta

from django.conf import settings
from django.db import DatabaseError
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from config.partitions.tables import TableLocked, read_now
from inference.archive.leaving import MustStay, leave
from inference.archive.plans import Place
from inference.archive.ranges import Range, list_due
from inference.archive.sealing import list_sealed, unseal
from inference.archive.stores import StoreFailed, open_store

logger = logging.getLogger("causeway.retention")


def archive_due() -> int:
    """Lets everything leave that is older than ``RETENTION_DAYS``; returns the number of ranges.

    The oldest range of a kind leaves first. One that must stay keeps the later ones of its kind,
    because folds follow each other in the order of time.
    """
    due = {kind: list_due(kind, days, read_now()) for kind, days in settings.RETENTION_DAYS.items()}
    _unseal_others(due.values())
    if due and settings.ARCHIVE_PLACE is not None:
        _clear(settings.ARCHIVE_PLACE)
    return sum(_archive(ranges) for ranges in due.values())


def _clear(place: Place) -> None:
    """Removes unfinished files of processes that died; without success everything else goes on."""
    try:
        open_store(place).clear()
    except StoreFailed as exc:
        logger.warning("unfinished files of the archive stay: %s", exc)


def _archive(ranges: list[Range]) -> int:
    store = None if settings.ARCHIVE_PLACE is None else open_store(settings.ARCHIVE_PLACE)
    for done, range_ in enumerate(ranges):
        try:
            files = leave(range_, store)
        except (MustStay, TableLocked) as exc:
            logger.warning("%s", exc)
            return done
        except StoreFailed as exc:
            logger.error("%s %s were not archived and stay: %s", range_.kind, range_.name, exc)
            return done
        logger.info(
            "%s %s have left: %d rows in %d files",
            range_.kind, range_.name, sum(file.rows for file in files), len(files),
        )  # fmt: skip
    return len(ranges)


def _unseal_others(due: Iterable[list[Range]]) -> None:
    """Opens partitions that a process which died has sealed, and that are not due any more."""
    names = {part.partition.name for ranges in due for range_ in ranges for part in range_.parts}
    unseal(list_sealed() - names)


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
