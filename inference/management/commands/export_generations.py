from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from accounts.management.arguments import find_organization
from config.bulk.commands import ExportCommand
from config.bulk.days import parse_day
from config.bulk.files import refuse, with_progress, write_output
from config.bulk.problems import ImportRefused
from config.bulk.tables import FORMATS, CountedItems, format_of, write_csv
from inference.archive import focus
from inference.archive.exports import ALL, COLUMNS, ExportSelection, read_generations
from inference.reports.rollups import archived_days


class Command(ExportCommand):
    help = "Writes the generations of UTC days, with their usage and costs; never a text."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--from", dest="first", type=parse_day, metavar="DAY",
            help="the first UTC day, as 2026-03-31",
        )  # fmt: skip
        parser.add_argument(
            "--to", dest="last", type=parse_day, metavar="DAY", help="the last day, included"
        )
        parser.add_argument("--organization", metavar="ID", help="only those of one organization")
        parser.add_argument(
            "--format",
            choices=[*sorted(FORMATS), "focus"],
            help="by default as the file's name ends, or jsonl; focus is FOCUS 1.2 as CSV",
        )
        parser.add_argument(
            "--partial", action="store_true", help="leave archived days out, and name them"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        first, last = options["first"], options["last"]
        if first and last and last < first:
            refuse(f"--to is {last}, which is before --from ({first}); nothing was written.")
        self.require_separate_output(options)
        selection = ExportSelection(first, last, find_organization(options["organization"]))
        missing = _find_missing(selection)
        if missing and not options["partial"]:
            refuse(
                f"Generations of these days are archived: {', '.join(missing)}. Nothing was "
                "written. --partial writes the others."
            )
        is_focus = options["format"] == "focus"
        query = focus.QUERY if is_focus else ALL
        rows = CountedItems(with_progress(read_generations(selection, query), self.stderr))
        try:
            if is_focus:
                chunks = write_csv(focus.COLUMNS, focus.write_charges(rows), mark="")
            else:
                chunks = FORMATS[options["format"] or format_of(options["file"])](COLUMNS, rows)
        except ImportRefused as exc:
            refuse(str(exc))
        write_output(options["file"], chunks)
        gone = _find_missing(selection)
        if gone != missing:
            refuse(f"Generations were archived meanwhile, and the file is short: {', '.join(gone)}")
        if missing:
            self.note(f"left out, because they are archived: {', '.join(missing)}")
        self.finish({"generations": rows.count}, options, missing_days=missing)


def _find_missing(selection: ExportSelection) -> list[str]:
    days = archived_days(selection.first, selection.last, selection.organization_id)
    return [str(day) for day in days]
