from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from accounts.models import Organization
from config.bulk.commands import ImportCommand
from config.bulk.files import open_lines, refuse
from config.bulk.report import Report, RowListener
from endpoints import imports


class Command(ImportCommand):
    help = "Creates and updates the private endpoints of a file as drafts, all or none."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organization_id", type=UUID)
        parser.add_argument(
            "file", help="JSON lines of the create request, without activate; - for standard input"
        )
        super().add_arguments(parser)

    def load(self, options: dict[str, Any], *, dry_run: bool, on_row: RowListener | None) -> Report:
        if not Organization.objects.filter(pk=options["organization_id"]).exists():
            refuse("There is no such organization.")
        with open_lines(options["file"], self.stderr) as lines:
            return imports.apply(options["organization_id"], lines, dry_run=dry_run, on_row=on_row)
