from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from catalog import imports
from catalog.lists.listing import describe_hidden
from config.bulk.commands import ImportCommand
from config.bulk.files import read_input, refuse
from config.bulk.report import Report, RowListener
from config.egress import EgressError, OutboundRequest
from config.egress.fetch import fetch

FETCH_TIMEOUT: Final = 60


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
        options["data"] = read_input(file) if url is None else _download(url)
        super().handle(*args, **options)
        is_dry = options["dry_run"] or options["plan"]
        if not is_dry and (text := describe_hidden()):
            self.note(text)

    def load(self, options: dict[str, Any], *, dry_run: bool, on_row: RowListener | None) -> Report:
        return imports.apply(imports.parse(options["data"]), dry_run=dry_run, on_row=on_row)


def _download(url: str) -> bytes:
    """Downloads a file through ``config.egress``: checked address, bounded size, no redirects."""
    # ``fetch`` allows plain HTTP to the networks of UPSTREAM_ALLOWED_NETWORKS.
    if not url.startswith("https://"):
        refuse("The URL must begin with https://")
    try:
        status, _, body = fetch(
            OutboundRequest("GET", url, {}), settings.EGRESS_POLICY, FETCH_TIMEOUT
        )
    except EgressError as exc:
        refuse(f"The catalogue could not be fetched: {exc}.")
    if status != 200:
        refuse(f"The catalogue could not be fetched: its server answered {status}.")
    return body
