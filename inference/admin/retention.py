"""The page of what leaves: partitions, what is overdue, folds, and departures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.contrib import admin
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat

from billing.models import Fold
from billing.models.ledger import OF_GENERATIONS
from config.clocks.writing import write_minute
from config.console.base import ConsoleAdmin
from config.console.formatting import render_table
from config.console.forms import part
from config.console.unfold import column, display
from config.models import Departure
from config.partitions.declarations import partitionings
from config.partitions.tables import list_all_partitions, read_now
from inference.archive.plans import KINDS
from inference.archive.ranges import list_due
from inference.archive.restoring import list_files
from inference.archive.sealing import list_sealed
from inference.ids import read_id_bound

# Folds and partitions of the last years; the commands list all.
_LATEST: Final = 60


_RETENTION: Final = ("Kind", "Leaves after", "Overdue")
_PARTITIONS: Final = ("Partition", "From", "Until", "Size", "State")
_FOLDS: Final = ("Fold", "From", "Until", "Folded at", "Rows")


@admin.register(Departure)
class DepartureAdmin(ConsoleAdmin):
    """Lists what has left, below the partitions and folds; nothing here changes anything."""

    is_read_only = True
    list_display = ("left_at", "kind", "begin", "end", "rows", "files_count")
    list_display_links = ("left_at",)
    list_filter = ("kind",)
    ordering = ("-id",)
    sortable_by = ()
    list_before_template = "admin/inference/partitions.html"
    empty_hint = "Audit entries, validations or sums of hours leave when RETENTION_DAYS says so."
    fieldsets = (part(None, ("kind", "begin", "end"), "left_at", "files_table", "state"),)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        now = read_now()
        return super().changelist_view(
            request,
            {
                **(extra_context or {}),
                "title": "Partitions and archives",
                "retention_table": render_table(_RETENTION, _describe_retention(now)),
                "partition_table": render_table(_PARTITIONS, _describe_partitions(now)),
                "fold_table": render_table(_FOLDS, _describe_folds(), empty="Nothing was folded."),
            },
        )

    rows = column("Rows", lambda departure: f"{sum(file.rows for file in list_files(departure)):,}")
    files_count = column("Files", lambda departure: str(len(departure.files)))

    @display(description="Files")
    def files_table(self, departure: Departure) -> str:
        rows = ((file.table, file.name, f"{file.rows:,}") for file in list_files(departure))
        return render_table(("Table", "File", "Rows"), rows)

    @display(description="Seal")
    def state(self, departure: Departure) -> str:
        return "right" if departure.has_seal else "wrong: the row was altered, or a secret is lost"


def _describe_retention(now: datetime) -> Iterator[tuple[str, str, str]]:
    for kind in KINDS:
        days = settings.RETENTION_DAYS.get(kind)
        if kind == "transfers":
            yield kind, "with their generations", ""
        elif days is None:
            yield kind, "never", ""
        else:
            due = list_due(kind, days, now)
            since = (
                f"{len(due)} since {due[0].end + timedelta(days=days):%Y-%m-%d}" if due else "no"
            )
            yield kind, f"{days} days", since


def _describe_partitions(now: datetime) -> Iterator[tuple[str, str, str, str, str]]:
    """Yields the latest partitions of each table; the one for odd rows is the last."""
    sealed = list_sealed()
    for found in list_all_partitions(partitionings()):
        for each in found[-_LATEST:]:
            state = "past"
            if each.name in sealed:
                state = "sealed for its archive"
            elif each.is_default:
                state = "rows of no other partition"
            elif each.contains(now):
                state = "present"
            elif each.begin is not None and each.begin > now:
                state = "ahead"
            yield (
                each.name, _write_day(each.begin), _write_day(each.end),
                str(filesizeformat(each.size)), state,
            )  # fmt: skip


def _describe_folds() -> Iterator[tuple[str, str, str, str, str]]:
    for fold in Fold.objects.order_by("-number")[:_LATEST]:
        yield (
            str(fold.number),
            _write_day(None if fold.begin == OF_GENERATIONS[0] else read_id_bound(fold.begin)),
            _write_day(read_id_bound(fold.end)),
            write_minute(fold.folded_at),
            f"{sum(file.rows for file in list_files(fold)):,}",
        )


def _write_day(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d}"
