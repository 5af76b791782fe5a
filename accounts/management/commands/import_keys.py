from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from accounts.imports import import_keys
from accounts.management.arguments import OrganizationImport
from config.bulk.files import refuse
from config.bulk.report import Report, RowListener


class Command(OrganizationImport):
    help = "Creates and changes the API keys of an organization from a file, all or none."
    apply = staticmethod(import_keys)

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--output", metavar="FILE", help="the file to which new secrets are appended, as CSV"
        )

    def load(self, options: dict[str, Any], *, dry_run: bool, on_row: RowListener | None) -> Report:
        try:
            return super().load(options, dry_run=dry_run, on_row=on_row)
        except OSError as exc:
            refuse(f"{options['output']}: {exc.strerror}. No key was created.")

    def read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"output": options["output"]}
