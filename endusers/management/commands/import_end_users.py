from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from accounts.models import Organization
from config.bulk.commands import ImportCommand
from config.bulk.files import open_lines, refuse
from config.bulk.report import Report, RowListener
from config.bulk.rows import is_csv
from endusers import imports


class Command(ImportCommand):
    help = "Registers the end users of a file and sets their flags, all or none."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organization_id", type=UUID)
        parser.add_argument(
            "file", help="CSV with the header user[,is_active], or JSON lines; - for standard input"
        )
        super().add_arguments(parser)

    def load(self, options: dict[str, Any], *, dry_run: bool, on_row: RowListener | None) -> Report:
        if not Organization.objects.filter(pk=options["organization_id"]).exists():
            refuse("There is no such organization.")
        with open_lines(options["file"], self.stderr) as lines:
            as_csv, lines = is_csv(options["file"], lines)
            return imports.apply(
                options["organization_id"], lines, as_csv=as_csv, dry_run=dry_run, on_row=on_row
            )
