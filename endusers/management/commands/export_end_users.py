from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from accounts.models import Organization
from config.bulk.commands import ExportCommand
from config.bulk.files import refuse
from endusers import imports


class Command(ExportCommand):
    help = "Writes the end users of an organization: CSV to a .csv file, else JSON lines."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organization_id", type=UUID)
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if not Organization.objects.filter(pk=options["organization_id"]).exists():
            refuse("There is no such organization.")
        as_csv = options["file"].lower().endswith(".csv")
        self.write(
            imports.KIND,
            imports.export(options["organization_id"], as_csv=as_csv),
            options,
            header=imports.CSV_HEADER if as_csv else b"",
        )
