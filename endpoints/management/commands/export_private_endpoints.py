from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from accounts.models import Organization
from config.bulk.commands import ExportCommand
from config.bulk.files import refuse
from endpoints import imports


class Command(ExportCommand):
    help = "Writes the private endpoints of an organization as JSON lines of the create request."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("organization_id", type=UUID)
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if not Organization.objects.filter(pk=options["organization_id"]).exists():
            refuse("There is no such organization.")
        if options["file"].lower().endswith(".csv"):
            refuse("Private endpoints are written as JSON lines; a .csv file would hold no CSV.")
        self.write(imports.KIND, imports.export(options["organization_id"]), options)
