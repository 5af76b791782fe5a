from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from accounts.management.arguments import find_organization
from config.bulk.commands import ExportCommand
from config.bulk.days import parse_day
from config.bulk.files import refuse, with_progress, write_output
from config.bulk.problems import ImportRefused
from config.bulk.tables import FORMATS, Counted, format_of
from inference.archive.exports import COLUMNS, Selection, read_generations


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
            "--format", choices=sorted(FORMATS), help="by default as the file's name ends, or jsonl"
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        first, last = options["first"], options["last"]
        if first and last and last < first:
            refuse(f"--to is {last}, which is before --from ({first}); nothing was written.")
        self.require_separate_output(options)
        selection = Selection(first, last, find_organization(options["organization"]))
        rows = Counted(with_progress(read_generations(selection), self.stderr))
        write = FORMATS[options["format"] or format_of(options["file"])]
        try:
            chunks = write(COLUMNS, rows)
        except ImportRefused as exc:
            refuse(str(exc))
        write_output(options["file"], chunks)
        self.finish({"generations": rows.count}, options)
