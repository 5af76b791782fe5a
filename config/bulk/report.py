"""Counts the rows that an import creates, updates or leaves unchanged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class RowOutcome(StrEnum):
    """The outcome of one row of an import."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"


class RowListener(Protocol):
    """A function that an import calls with the outcome of each row, in the order of the file."""

    def __call__(self, kind: str, row: str, outcome: RowOutcome) -> None: ...


@dataclass(slots=True)
class Report:
    """The number of rows that an import created, updated and left unchanged, for each kind."""

    created: dict[str, int]
    updated: dict[str, int]
    unchanged: dict[str, int]
    dry_run: bool

    @classmethod
    def of_kinds(cls, *kinds: str, dry_run: bool) -> Report:
        """Returns a report with zero rows of each kind."""
        zeros = dict.fromkeys(kinds, 0)
        return cls(dict(zeros), dict(zeros), dict(zeros), dry_run)

    def counter(self, on_row: RowListener | None) -> RowListener:
        """Returns a listener that counts each row here and then calls ``on_row``."""
        counts = {
            RowOutcome.CREATE: self.created,
            RowOutcome.UPDATE: self.updated,
            RowOutcome.UNCHANGED: self.unchanged,
        }

        def count(kind: str, row: str, outcome: RowOutcome) -> None:
            counts[outcome][kind] += 1
            if on_row is not None:
                on_row(kind, row, outcome)

        return count
