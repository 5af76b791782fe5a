from __future__ import annotations

import os
from typing import Any
from uuid import UUID

from django.core.management.base import CommandParser

from accounts.management.arguments import require_organization
from catalog.connecting.gateways import catalogue
from catalog.connecting.gateways.documents import UnreadableGateway, decode
from catalog.connecting.gateways.known import bundled_servers
from catalog.connecting.gateways.litellm import read_config
from catalog.connecting.gateways.new_api import read_channels
from config.bulk.commands import ImportCommand
from config.bulk.files import read_input, refuse
from config.bulk.report import Report, RowListener
from endpoints import gateways


class Command(ImportCommand):
    help = (
        "Imports another gateway's configuration, all or none: providers, endpoints, credentials, "
        "aliases, limits and prices. What has no counterpart is listed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--from", dest="gateway", required=True, choices=("litellm", "new-api"))
        parser.add_argument(
            "file",
            help="config.yaml of LiteLLM, or new-api's list of channels in JSON; - for standard "
            "input",
        )
        parser.add_argument(
            "--organization",
            dest="organization_id",
            type=UUID,
            metavar="ID",
            help="import drafts of this organization, not into the catalogue",
        )
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        # Reads before the transaction begins: standard input may be slow.
        options["data"] = read_input(options["file"])
        super().handle(*args, **options)

    def load(self, options: dict[str, Any], *, dry_run: bool, on_row: RowListener | None) -> Report:
        owner: UUID | None = options["organization_id"]
        require_organization(owner)
        servers = bundled_servers()
        try:
            text = decode(options["data"])
            if options["gateway"] == "litellm":
                gateway = read_config(text, os.environ, servers)
            else:
                gateway = read_channels(text, servers)
        except UnreadableGateway as exc:
            refuse(f"{options['file']}: {exc} Nothing was changed.")
        if owner is None:
            return catalogue.apply(gateway, dry_run=dry_run, on_row=on_row)
        return gateways.apply(owner, gateway, dry_run=dry_run, on_row=on_row)

    def report(self, result: dict[str, Any], *, as_json: bool) -> None:
        """Prints the counts; what was left out follows on standard error, a line each."""
        if as_json:
            super().report(result, as_json=True)
            return
        left_out = result.pop("left_out")
        super().report({**result, "left_out": len(left_out)}, as_json=False)
        for each in left_out:
            self.note(f"left out: line {each['line']}: {each['name']}: {each['reason']}")
