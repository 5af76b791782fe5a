from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandParser

from catalog import imports
from config.commands import Command as BaseCommand
from config.commands import read_input, refuse


class Command(BaseCommand):
    help = "Creates and updates providers, models and endpoints from a catalogue file, all or none."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="the catalogue, in JSON; - for standard input")
        parser.add_argument("--dry-run", action="store_true", help="report, and change nothing")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            catalog = imports.parse(read_input(options["file"]))
            report = imports.apply(catalog, dry_run=options["dry_run"])
        except imports.CatalogRefused as exc:
            refuse(str(exc))
        self.report(asdict(report), as_json=options["json"])
