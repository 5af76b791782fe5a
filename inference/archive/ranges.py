"""Finds the partitions that may leave, and the reasons why they must stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.apps import apps
from psycopg import sql

from billing.models.ledger import OF_GENERATIONS
from config.partitions.declarations import Partitioning
from config.partitions.tables import Partition, has_past, has_time, list_partitions
from config.sql import fetch_rows
from inference.archive.tables import Table
from inference.models import Generation
from inference.reports.hours import summed_until

# The tables of each kind by their models, with a unique key.
_MODELS: Final = {
    "generations": (("inference.Generation", ("id",)), ("billing.Transfer", ("reference", "kind"))),
    "audit": (("config.AuditEntry", ("id",)),),
    "validations": (("endpoints.Validation", ("id",)),),
    "hours": (("inference.HourlyUsage", ("hour",)),),
}

_RUNNING: Final = "SELECT 1 FROM inference_journal WHERE generation_id >= %s AND generation_id < %s"
_UNDER_REVIEW: Final = """
SELECT 1 FROM billing_excess
WHERE reference >= %s AND reference < %s AND status = 'under_review' AND amount_nano > 0
"""
_PENDING: Final = "SELECT 1 FROM {} WHERE status = 'pending' LIMIT 1"
_DAYS: Final = """
SELECT min(d.day), max(d.last) FROM (
    SELECT (created_at AT TIME ZONE 'UTC')::date AS day, max(created_at) AS last FROM {} GROUP BY 1
) AS d
WHERE NOT EXISTS (SELECT 1 FROM inference_usageday AS u WHERE u.day = d.day)
"""
_LAST: Final = "SELECT max(created_at) FROM {}"


@dataclass(frozen=True, slots=True)
class TablePartition:
    """A partition with the table that it belongs to, and the unique key of its rows."""

    partitioning: Partitioning
    partition: Partition
    key: tuple[str, ...]

    @property
    def table(self) -> Table:
        """The rows that are archived: what has no time stays for ever."""
        return Table(self.partition.name, self.key, has_time(self.partitioning))


@dataclass(frozen=True, slots=True)
class Range:
    """Partitions of all tables of a kind that end together, and so can leave together."""

    kind: str
    begin: datetime | None
    end: datetime
    parts: tuple[TablePartition, ...]

    @property
    def begin_id(self) -> str:
        return OF_GENERATIONS[0] if self.begin is None else id_bound(self.begin)

    @property
    def end_id(self) -> str:
        return id_bound(self.end)

    @property
    def name(self) -> str:
        """The name for people and files: the first and the last day."""
        begin = "0" if self.begin is None else f"{self.begin:%Y-%m-%d}"
        return f"{begin}_{self.end - timedelta(days=1):%Y-%m-%d}"

    def of(self, model: type[Any]) -> list[TablePartition]:
        return [part for part in self.parts if part.partitioning.table == model._meta.db_table]


def id_bound(moment: datetime) -> str:
    """Returns the lowest id of a generation from a moment on."""
    return Generation.partitioning.write_bound(moment)


def list_ranges(kind: str) -> list[Range]:
    """Returns the ranges of a kind in the order of time."""
    columns = []
    for label, key in _MODELS[kind]:
        partitioning: Partitioning = apps.get_model(label).partitioning
        columns.append(
            [
                TablePartition(partitioning, each, key)
                for each in list_partitions(partitioning)
                if not each.is_default and each.end is not None
            ]
        )
    return _unite(kind, columns)


def list_due(kind: str, days: int, now: datetime) -> list[Range]:
    """Returns the ranges whose last row is older than this number of days."""
    return [each for each in list_ranges(kind) if each.end + timedelta(days=days) <= now]


def find_obstacle(range_: Range) -> str | None:
    """Returns why a range cannot leave yet; ``None`` if it can.

    What it reads does not change any more once the range is sealed, but for the decisions of
    operators about excesses, of which none is open then.
    """
    if range_.kind == "hours":
        return _find_last_hour(range_)
    if range_.kind != "generations":
        return None
    for part in range_.parts:
        # The first partition must be there until they have moved, and folds follow each other.
        if has_past(part.partitioning):
            return (
                f"{part.partitioning.default} has rows of a month without a partition; see "
                "docs/runbooks.md#causewaypartitionsmissing"
            )
    bounds = (range_.begin_id, range_.end_id)
    if _has(_RUNNING, bounds):
        return "a generation of it is running"
    if _has(_UNDER_REVIEW, bounds):
        return "an excess of it is under review; charge it or write it off"
    for part in range_.parts:
        if _has(sql.SQL(_PENDING).format(sql.Identifier(part.partition.name))):
            return f"{part.partition.name} has a pending row"
    return next(filter(None, map(_find_unsummed, range_.of(Generation))), None)


def _find_last_hour(range_: Range) -> str | None:
    """Hours are summed from the last one on, so that one must not leave."""
    until = summed_until()
    if until is None or until <= range_.end:
        return "no later hour is summed yet; the duty roll_up_hours does it"
    return None


def _find_unsummed(part: TablePartition) -> str | None:
    name = sql.Identifier(part.partition.name)
    [[day, _]] = fetch_rows(sql.SQL(_DAYS).format(name))
    [[last]] = fetch_rows(sql.SQL(_LAST).format(name))
    if day is not None:
        return f"{day} is not summed yet; the duty roll_up_usage does it"
    until = summed_until()
    if last is not None and (until is None or until <= last):
        return f"the hours until {last} are not summed yet; the duty roll_up_hours does it"
    return None


def _unite(kind: str, columns: Sequence[list[TablePartition]]) -> list[Range]:
    """Returns the shortest runs of partitions that end together in every table."""
    ends = [
        {part.partition.end for part in parts if part.partition.end is not None}
        for parts in columns
    ]
    found: list[Range] = []
    begin = None
    for end in sorted(set.intersection(*ends)):
        parts = tuple(
            part
            for each in columns
            for part in each
            if part.partition.end is not None
            and part.partition.end <= end
            and (begin is None or part.partition.end > begin)
        )
        begins = [part.partition.begin for part in parts]
        first = None if None in begins else min(each for each in begins if each is not None)
        found.append(Range(kind, first, end, parts))
        begin = end
    return found


def _has(query: Any, values: Sequence[str] = ()) -> bool:
    return bool(fetch_rows(query, values or None))
