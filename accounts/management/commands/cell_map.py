from __future__ import annotations

import json
from typing import Any

from django.conf import settings
from django.core.management.base import CommandParser
from django.db import transaction

from accounts.cells.proxy_map import find_doubled, read_map
from config.bulk.commands import JSONCommand
from config.bulk.files import refuse
from config.cells import HOME


class Command(JSONCommand):
    help = (
        "Prints a map for HAProxy: shards and routing codes of organizations, and their cells. "
        "--json prints it as the lists 'shards' and 'codes'."
    )
    is_audited = False

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--prefix", default="", help="text before the name of a cell")
        super().add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if settings.CELL != HOME:
            refuse("Only the home cell has the directory of all cells: run cell_map there.")
        prefix = options["prefix"]
        with transaction.atomic():
            if doubled := find_doubled():
                refuse(
                    f"{' '.join(doubled)} Keep the present map, and try again in some seconds. "
                    "If it stays so, a cell was restored from before a move: see docs/backup.md."
                )
            lines = ((code, prefix + cell) for code, cell in read_map())
            if options["json"]:
                found = dict(lines)
                shards = {code: cell for code, cell in found.items() if len(code) == 2}
                codes = {code: cell for code, cell in found.items() if len(code) != 2}
                self.stdout.write(json.dumps({"shards": shards, "codes": codes}))
                return
            for code, cell in lines:
                self.stdout.write(f"{code} {cell}")
