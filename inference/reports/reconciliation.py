"""Compares a provider's usage export with our generations: by id, or by day and model."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Any, Final

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Coalesce

from catalog.models import Provider
from catalog.pricing import NANO
from config.api.text import plain_digits
from inference.models import Generation
from inference.reports.invoices import InvoiceLine
from inference.reports.rollups import RowsArchived, archived_days, end_of, midnight

_MAX_ROWS: Final = 100
# A provider may count a generation on the day before or after ours, if it names it by its id.
_MARGIN: Final = timedelta(days=1)
_NANO: Final = Decimal(1) / NANO
# A name such as claude-haiku-4-5-20251001 ends in a day.
_DAY_DIGITS: Final = len("20251001")
# And one for people, such as Claude 3.5 Sonnet 2024-10-22.
_SHOWN_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(slots=True)
class ReconciledSums:
    """What one side says about a generation, or about a model on a day."""

    requests: int | None = None
    prompt: int | None = None
    completion: int | None = None
    cost: Decimal | None = None
    rounding: Decimal = Decimal(0)

    def add(self, other: ReconciledSums) -> None:
        for name in ("requests", "prompt", "completion", "cost"):
            value = getattr(other, name)
            if value is not None:
                setattr(self, name, (getattr(self, name) or 0) + value)
        self.rounding += other.rounding


@dataclass(slots=True)
class Reconciliation:
    """The outcome: generations or groups that agree, that one side lacks, and that differ.

    ``rows`` names the first 100 that do not agree. Totals are in USD; ``total_there`` is ``None``
    if the export has no costs.
    """

    matched: int = 0
    missing_here: int = 0
    missing_there: int = 0
    differing: int = 0
    total_here: Decimal = Decimal(0)
    total_there: Decimal | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def agrees(self) -> bool:
        return not (self.missing_here or self.missing_there or self.differing)

    def note(
        self, finding: str, name: str, here: ReconciledSums | None, there: ReconciledSums | None
    ) -> None:
        setattr(self, finding, getattr(self, finding) + 1)
        if finding != "matched" and len(self.rows) < _MAX_ROWS:
            self.rows.append(
                {"finding": finding, "row": name, "here": _shown(here), "there": _shown(there)}
            )


def reconcile(
    provider: Provider,
    lines: list[InvoiceLine],
    *,
    organization_id: uuid.UUID | None = None,
    tolerance: Decimal = Decimal(0),
) -> Reconciliation:
    """Compares an export with the generations of its days.

    Those paid by the operator's account count, or with ``organization_id`` those that this
    organization's own credentials paid. Costs may differ by ``tolerance``, besides the rounding of
    each generation to nano-USD and that of each line. A line that the export repeats differs.
    Raises :class:`RowsArchived` where generations of these days have left, or of the day beside
    them that may have those of a line.
    """
    matcher = _Matcher(lines, tolerance)
    days = [line.day for line in lines]
    first, last = min(days), max(days)
    if gone := archived_days(first, last, organization_id):
        raise RowsArchived(
            "Generations of these days are archived and cannot be compared: "
            f"{', '.join(map(str, gone))}. Leave them out of the export."
        )
    for generation in _find_generations(provider, first - _MARGIN, last + _MARGIN, organization_id):
        is_covered = first <= generation["created_at"].date() <= last
        matcher.add(generation, is_covered=is_covered)
    unknown = matcher.unknown_days
    for day, beside in ((first, first - _MARGIN), (last, last + _MARGIN)):
        if day in unknown and archived_days(beside, beside, organization_id):
            raise RowsArchived(
                f"Generations of {beside} are archived, and lines of {day} may be theirs. Leave "
                f"{day} out of the export."
            )
    return matcher.finish()


def _find_generations(
    provider: Provider, first: date, last: date, organization_id: uuid.UUID | None
) -> Iterable[dict[str, Any]]:
    """Returns the ended generations of these UTC days at a provider, one at a time."""
    rows: QuerySet[Any] = Generation.objects.exclude(status="pending").created(
        midnight(first), end_of(last)
    )
    if organization_id is None:
        rows = rows.filter(is_byok=False, model_endpoint__provider=provider)
    else:
        own = Q(model_endpoint__provider=provider) | Q(private_endpoint__provider=provider)
        rows = rows.filter(own, is_byok=True, organization_id=organization_id)
    found: Iterable[dict[str, Any]] = rows.values(
        "id", "created_at", "model", "upstream_id", "upstream_model", "prompt_tokens",
        "completion_tokens", "upstream_cost_nano",
        sent=Coalesce(
            F("model_endpoint__upstream_model_id"), F("private_endpoint__upstream_model_id")
        ),
    ).order_by().iterator()  # fmt: skip
    return found


class _Matcher:
    """Matches generations with the lines of an export as they come.

    A line with an id is one generation; the others are summed by day and model, and so are the
    generations that no line names.
    """

    def __init__(self, lines: list[InvoiceLine], tolerance: Decimal) -> None:
        self._tolerance = tolerance
        self._result = Reconciliation()
        self._by_id: dict[str, ReconciledSums] = {}
        self._lines: dict[str, InvoiceLine] = {}
        self._repeated: set[str] = set()
        self._groups: dict[tuple[date, str], ReconciledSums] = {}
        # The group of each day and other name of its model.
        self._other_names: dict[tuple[date, str], tuple[date, str]] = {}
        # The groups of each day by the words of a name that is no id: "Claude Haiku 4.5".
        self._by_words: dict[tuple[date, str], set[tuple[date, str]]] = {}
        self._here: dict[tuple[date, str], ReconciledSums] = {}
        for line in lines:
            self._add_line(line)

    def _add_line(self, line: InvoiceLine) -> None:
        sums = ReconciledSums(line.requests, line.prompt, line.completion, line.cost, line.rounding)
        if line.cost is not None:
            self._result.total_there = (self._result.total_there or Decimal(0)) + line.cost
        if not line.id and not line.model:
            return
        if not line.id:
            group = line.day, line.model
            self._groups.setdefault(group, ReconciledSums()).add(sums)
            if line.other_name:
                self._other_names.setdefault((line.day, line.other_name), group)
            if " " in line.model or "/" in line.model:
                self._by_words.setdefault((line.day, _words_of(line.model)), set()).add(group)
        elif line.id in self._by_id:
            self._repeated.add(line.id)
            self._by_id[line.id].add(sums)
        else:
            self._by_id[line.id] = sums
            self._lines[line.id] = line

    @property
    def unknown_days(self) -> set[date]:
        """The days of the lines with an id that no generation has."""
        return {self._lines[key].day for key in self._by_id}

    def add(self, generation: dict[str, Any], *, is_covered: bool) -> None:
        """Matches a generation by the provider's id or ours, else adds it to its group.

        ``is_covered`` says that it was made on a day of the export; any other one is matched by its
        id alone.
        """
        cost = Decimal(generation["upstream_cost_nano"]) / NANO
        here = ReconciledSums(1, generation["prompt_tokens"], generation["completion_tokens"], cost)
        key = next(
            (
                found
                for found in (generation["upstream_id"], generation["id"])
                if found in self._by_id
            ),
            None,
        )
        if key is not None:
            self._result.total_here += cost
            there = self._by_id.pop(key)
            is_equal = key not in self._repeated and self._is_equal(here, there)
            finding = "matched" if is_equal else "differing"
            self._result.note(finding, _name_line(self._lines[key]), here, there)
            return
        if not is_covered or not (cost or here.prompt or here.completion):
            return  # nothing was delivered, so a provider bills nothing
        self._result.total_here += cost
        day = generation["created_at"].date()
        if not self._groups:
            name = f"{day} {generation['model']} {generation['id']}"
            self._result.note("missing_there", name, here, None)
            return
        names = [generation["upstream_model"], generation["sent"], generation["model"]]
        groups = [(day, name) for name in names if name]
        known = [group for group in groups if group in self._groups]
        known += [self._other_names[group] for group in groups if group in self._other_names]
        if not known:
            alike = [self._by_words.get((day, _words_of(name)), set()) for _, name in groups]
            known = [group for found in alike if len(found) == 1 for group in found]
        self._here.setdefault([*known, *groups][0], ReconciledSums()).add(here)

    def finish(self) -> Reconciliation:
        """Compares the groups, and returns the outcome."""
        result = self._result
        for key, there in self._by_id.items():
            result.note("missing_here", _name_line(self._lines[key]), None, there)
        for day, model in sorted(self._groups.keys() | self._here.keys()):
            group = (day, model)
            here, billed = self._here.get(group), self._groups.get(group)
            result.note(self._judge(here, billed), f"{day} {model}", here, billed)
        return result

    def _judge(self, here: ReconciledSums | None, there: ReconciledSums | None) -> str:
        if there is None:
            return "missing_there"
        if here is None:
            return "missing_here"
        return "matched" if self._is_equal(here, there) else "differing"

    def _is_equal(self, here: ReconciledSums, there: ReconciledSums) -> bool:
        """Returns whether both sides agree in everything that the export says."""
        for name in ("requests", "prompt", "completion"):
            value = getattr(there, name)
            if value is not None and value != (getattr(here, name) or 0):
                return False
        if there.cost is None:
            return True
        rounding = _NANO * (here.requests or 1) + there.rounding
        return abs(there.cost - (here.cost or 0)) <= self._tolerance + rounding


def _name_line(line: InvoiceLine) -> str:
    return f"{line.day} {line.model} {line.id}"


def _words_of(name: str) -> str:
    """Returns the words of a model's name without its author and its day, in one order.

    ``Claude Haiku 4.5``, ``claude-haiku-4-5-20251001`` and ``claude-4.5-haiku`` are alike.
    """
    if " " in name:
        name = _SHOWN_DAY.sub("", name)
    words = re.findall(r"[a-z]+|[0-9]+", name.lower().rpartition("/")[2].partition(":")[0])
    return " ".join(sorted(word for word in words if len(word) < _DAY_DIGITS or word.isalpha()))


def _shown(sums: ReconciledSums | None) -> dict[str, Any] | None:
    if sums is None:
        return None
    cost = None if sums.cost is None else plain_digits(sums.cost)
    return {
        "requests": sums.requests,
        "prompt_tokens": sums.prompt,
        "completion_tokens": sums.completion,
        "cost": cost,
    }


def describe_rows(result: Reconciliation) -> Iterator[str]:
    """Yields a line for each named row that does not agree."""
    for row in result.rows:
        sides = (f"{side}: {describe_side(row[side])}" for side in ("here", "there"))
        yield f"{row['finding'].replace('_', ' ')}: {row['row']}: {'; '.join(sides)}"


def describe_side(side: dict[str, Any] | None) -> str:
    """Returns one side of a row as a person reads it."""
    if side is None:
        return "nothing"
    return ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in side.items() if value is not None
    )
