"""Commands that read or write the rows of an organization, and the argument that names it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from django.core.management.base import CommandError, CommandParser

from accounts.models import Organization
from config.bulk.commands import ExportCommand, ImportCommand
from config.bulk.files import open_lines, refuse
from config.bulk.report import Report, RowListener
from config.bulk.rows import is_csv


def find_organization(text: str | None) -> uuid.UUID | None:
    """Returns the id after ``--organization``; ends the command for one that does not exist."""
    if text is None:
        return None
    try:
        key = uuid.UUID(text)
    except ValueError:
        raise CommandError("--organization must be the ID of one.", returncode=2) from None
    if not Organization.objects.filter(pk=key).exists():
        refuse(f"There is no organization {key}.")
    return key


def require_organization(key: uuid.UUID | None) -> None:
    """Ends the command if an organization that it names does not exist."""
    if key is not None and not Organization.objects.filter(pk=key).exists():
        refuse("There is no such organization.")


def add_organization(parser: CommandParser, otherwise: str = "") -> None:
    """Adds the argument; it may be left out if ``otherwise`` says in its help what is done then."""
    number = "?" if otherwise else None
    parser.add_argument("organization_id", type=uuid.UUID, nargs=number, help=otherwise or None)


class OrganizationImport(ImportCommand):
    """Applies a file of rows of an organization."""

    apply: ClassVar[Callable[..., Report]]
    file_help: ClassVar[str] = "CSV with a header, or JSON lines; - for standard input"
    takes_csv: ClassVar[bool] = True
    otherwise: ClassVar[str] = ""

    def add_arguments(self, parser: CommandParser) -> None:
        add_organization(parser, self.otherwise)
        parser.add_argument("file", help=self.file_help)
        super().add_arguments(parser)

    def load(self, options: dict[str, Any], *, dry_run: bool, on_row: RowListener | None) -> Report:
        key = options["organization_id"]
        require_organization(key)
        further = self.read_options(options)
        with open_lines(options["file"], self.stderr) as lines:
            if self.takes_csv:
                further["as_csv"], lines = is_csv(options["file"], lines)
            return type(self).apply(key, lines, dry_run=dry_run, on_row=on_row, **further)

    def read_options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Returns what ``apply`` is given besides."""
        return {}


class OrganizationExport(ExportCommand):
    """Writes the rows of an organization: JSON lines, or with ``csv_header`` CSV to a .csv file.

    ``export`` is then told which of both by ``as_csv``.
    """

    kind: ClassVar[str]
    noun: ClassVar[str]
    export: ClassVar[Callable[..., Iterator[bytes]]]
    csv_header: ClassVar[bytes] = b""
    otherwise: ClassVar[str] = ""

    def add_arguments(self, parser: CommandParser) -> None:
        add_organization(parser, self.otherwise)
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        require_organization(options["organization_id"])
        as_csv = options["file"].lower().endswith(".csv")
        if as_csv and not self.csv_header:
            refuse(f"{self.noun} are written as JSON lines; a .csv file would hold no CSV.")
        further = {"as_csv": as_csv} if self.csv_header else {}
        rows = type(self).export(options["organization_id"], **further)
        self.write(self.kind, rows, options, header=self.csv_header if as_csv else b"")
