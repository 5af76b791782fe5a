from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from catalog import imports
from catalog.lists.listing import describe_hidden
from catalog.sync.documents import UnreadableList
from catalog.sync.run import fetch_list
from config.bulk.commands import ImportCommand
from config.bulk.files import read_input, refuse
from config.bulk.report import Report, RowListener


class Command(ImportCommand):
    help = "Creates and updates providers, models and endpoints from a catalogue file, all or none."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", nargs="?", help="the catalogue, in JSON; - for standard input")
        parser.add_argument(
            "--bundled", action="store_true", help="take the catalogue that Causeway brings"
        )
        parser.add_argument("--from-url", metavar="URL", help="fetch the catalogue over HTTPS")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        file, url = options["file"], options["from_url"]
        if [file is not None, url is not None, options["bundled"]].count(True) != 1:
            raise CommandError("Name a FILE, --from-url URL or --bundled.", returncode=2)
        if options["bundled"]:
            file = str(imports.BUNDLED)
        # Downloads before the transaction begins: locks must not wait for a slow server.
        try:
            options["data"] = read_input(file) if url is None else fetch_list(url, "catalogue")
        except UnreadableList as exc:
            refuse(str(exc))
        super().handle(*args, **options)
        is_dry = options["dry_run"] or options["plan"]
        if not is_dry and (text := describe_hidden()):
            self.note(text)

    def load(self, options: dict[str, Any], *, dry_run: bool, on_row: RowListener | None) -> Report:
        return imports.apply(imports.parse(options["data"]), dry_run=dry_run, on_row=on_row)
