from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from accounts.models import Organization
from catalog.aliases import imports
from config.bulk.commands import ExportCommand
from config.bulk.files import refuse


class Command(ExportCommand):
    help = "Writes the aliases of an organization, or of the operator, as JSON lines."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "organization_id",
            type=UUID,
            nargs="?",
            help="the organization whose aliases are written; the operator's if it is left out",
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        owner: UUID | None = options["organization_id"]
        if owner is not None and not Organization.objects.filter(pk=owner).exists():
            refuse("There is no such organization.")
        if options["file"].lower().endswith(".csv"):
            refuse("Aliases are written as JSON lines; a .csv file would hold no CSV.")
        self.write(imports.KIND, imports.export(owner), options)
