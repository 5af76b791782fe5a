from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from accounts.management.arguments import add_organization, require_organization
from config.bulk.commands import ExportCommand
from endusers import imports


class Command(ExportCommand):
    help = "Writes the end users of an organization: CSV to a .csv file, else JSON lines."

    def add_arguments(self, parser: CommandParser) -> None:
        add_organization(parser)
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        require_organization(options["organization_id"])
        as_csv = options["file"].lower().endswith(".csv")
        self.write(
            imports.KIND,
            imports.export(options["organization_id"], as_csv=as_csv),
            options,
            header=imports.CSV_HEADER if as_csv else b"",
        )
