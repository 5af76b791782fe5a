"""Counts the rows that an import creates, updates or leaves unchanged, and plans what changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, Self


class RowOutcome(StrEnum):
    """The outcome of one row of an import."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"


class RowChange(Protocol):
    """One column of a row that an import changes; its ``str`` is a line for people.

    ``before``, ``after`` and ``effect``, such as a percentage, are texts for people. ``risk`` says
    why to look twice, and is empty for an ordinary change. ``members`` are for programs.
    """

    @property
    def label(self) -> str: ...
    @property
    def before(self) -> str: ...
    @property
    def after(self) -> str: ...
    @property
    def effect(self) -> str: ...
    @property
    def risk(self) -> str: ...
    @property
    def members(self) -> dict[str, Any]: ...


class ColumnChange(NamedTuple):
    """The old and the new value of one column, as texts; ``None`` where there is none."""

    label: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.label}: {self.before} → {self.after}"

    @property
    def before(self) -> str:
        return self.old or "nothing"

    @property
    def after(self) -> str:
        return self.new or "nothing"

    @property
    def effect(self) -> str:
        return ""

    @property
    def risk(self) -> str:
        return ""

    @property
    def members(self) -> dict[str, Any]:
        return {"column": self.label, "old": self.old, "new": self.new}


class RowListener(Protocol):
    """A function that an import calls with the outcome of each row, in the order of the file.

    ``changes`` are the columns that change, where the import compares them.
    """

    def __call__(
        self, kind: str, row: str, outcome: RowOutcome, changes: Sequence[RowChange] = ()
    ) -> None: ...


class PlanRow(NamedTuple):
    """A row that an import creates or changes."""

    kind: str
    row: str
    outcome: str
    changes: Sequence[RowChange] = ()

    def __str__(self) -> str:
        changes = "; ".join(map(str, self.changes))
        head = f"{self.outcome}: {self.kind} {self.row!r}"
        risks = f"Look twice ({', '.join(self.risks)}): " if self.risks else ""
        return f"{risks}{head}{': ' if changes else ''}{changes}"

    @property
    def noun(self) -> str:
        """The kind of the row in words."""
        return self.kind.replace("_", " ")

    @property
    def risks(self) -> list[str]:
        """The reasons to look twice; a new row has none, because it changes no price."""
        if self.outcome == RowOutcome.CREATE:
            return []
        return list(dict.fromkeys(change.risk for change in self.changes if change.risk))


class ImportPlan:
    """The rows that an import changes: the risky ones first, at most ``limit``, then a number."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._risky: list[PlanRow] = []
        self._others: list[PlanRow] = []
        self._count = 0

    def add(
        self, kind: str, row: str, outcome: RowOutcome, changes: Sequence[RowChange] = ()
    ) -> None:
        """Adds the outcome of a row; an unchanged one is left out. This is a listener."""
        if outcome is RowOutcome.UNCHANGED:
            return
        self._count += 1
        planned = PlanRow(kind, row, outcome, changes)
        rows = self._risky if planned.risks else self._others
        if len(rows) < self._limit:
            rows.append(planned)

    @property
    def rows(self) -> list[PlanRow]:
        return [*self._risky, *self._others][: self._limit]

    @property
    def hidden(self) -> int:
        """The number of rows that change beyond those that are listed."""
        return self._count - len(self.rows)


@dataclass(slots=True)
class Report:
    """The number of rows that an import created, updated and left unchanged, for each kind."""

    created: dict[str, int]
    updated: dict[str, int]
    unchanged: dict[str, int]
    dry_run: bool

    @classmethod
    def of_kinds(cls, *kinds: str, dry_run: bool) -> Self:
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

        def count(
            kind: str, row: str, outcome: RowOutcome, changes: Sequence[RowChange] = ()
        ) -> None:
            counts[outcome][kind] += 1
            if on_row is not None:
                on_row(kind, row, outcome, changes)

        return count
