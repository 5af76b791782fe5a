from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from accounts.models import Organization
from catalog.aliases import imports
from config.bulk.commands import ImportCommand
from config.bulk.files import open_lines, refuse
from config.bulk.report import Report, RowListener


class Command(ImportCommand):
    help = "Imports aliases of models, all or none: JSON lines with name and targets."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "organization_id",
            type=UUID,
            nargs="?",
            help="the organization that gets the aliases; the operator if it is left out",
        )
        parser.add_argument("file", help="JSON lines; - for standard input")
        super().add_arguments(parser)

    def load(self, options: dict[str, Any], *, dry_run: bool, on_row: RowListener | None) -> Report:
        owner: UUID | None = options["organization_id"]
        if owner is not None and not Organization.objects.filter(pk=owner).exists():
            refuse("There is no such organization.")
        with open_lines(options["file"], self.stderr) as lines:
            return imports.apply(owner, lines, dry_run=dry_run, on_row=on_row)
