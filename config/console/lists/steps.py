"""Searches a list for rare rows in steps, each over a bounded number of the list's rows.

No index helps with some filters of tables that grow. PostgreSQL would read ten million rows before
it knows that none matches, so a page reads a part of them, names it, and links to the next part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db.models import QuerySet

from config.console.lists.keysets import Keyset

STEPS: Final = (5_000, 45_000, 50_000, *(9 * [100_000]))
"""The rows that each step of a page looks at, a million in all; the first finds frequent values."""


@dataclass
class RowSearch:
    """A search among the rows of a list; :meth:`run` fills ``found`` and ``edge``.

    ``wide`` are the rows of the list with those filters alone that an index helps with, ``narrow``
    with all of them; without ``wide`` all rows are one step. ``found`` are at most ``wanted`` rows
    behind ``position``. ``edge`` is the position up to which every row was looked at, if the search
    is not over; it is right after every step, also when PostgreSQL stops the next one.
    """

    keyset: Keyset
    wide: QuerySet[Any] | None
    narrow: QuerySet[Any]
    position: str
    backwards: bool
    wanted: int
    found: list[Any] = field(default_factory=list)
    edge: str | None = None

    def run(self) -> None:
        """Looks for rows; raises :class:`~config.console.lists.keysets.InvalidPosition`."""
        begin = self.position
        for size in STEPS:
            edge = None
            if self.wide is not None:
                edge = find_edge(self.keyset, self.wide, begin, size, backwards=self.backwards)
            rows = _behind(self.keyset, self.narrow, begin, backwards=self.backwards)
            if edge is not None:
                rows = self.keyset.until(rows, edge, backwards=self.backwards)
            self.found += rows[: self.wanted - len(self.found)]
            self.edge = None if len(self.found) >= self.wanted else edge
            if self.edge is None:
                return
            begin = self.edge


def find_edge(
    keyset: Keyset, rows: QuerySet[Any], begin: str, size: int, *, backwards: bool
) -> str | None:
    """Returns the position of the last of ``size`` rows; ``None`` if fewer rows are left."""
    names = [column.name for column, _ in keyset.columns]
    behind = _behind(keyset, rows, begin, backwards=backwards).select_related(None)
    # The names alone: other columns would be computed for each row that is passed over.
    [*last] = behind.values_list(*names)[size - 1 : size]
    return (
        keyset.position_of(rows.model(**dict(zip(names, last[0], strict=True)))) if last else None
    )


def read_time(keyset: Keyset, rows: QuerySet[Any], position: str) -> datetime | None:
    """Returns the time of the row at a position; ``None`` if it is not there any more."""
    at = rows.model._base_manager.using(rows.db).all()
    for backwards in (False, True):
        at = keyset.until(at, position, backwards=backwards)
    return at.values_list("created_at", flat=True).first()


def _behind(keyset: Keyset, rows: QuerySet[Any], begin: str, *, backwards: bool) -> QuerySet[Any]:
    """Returns the rows behind a position in their order; all rows for an empty one."""
    beyond = keyset.beyond(rows, begin, backwards=backwards) if begin else rows
    return keyset.order(beyond, backwards=backwards)
