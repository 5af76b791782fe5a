from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from catalog import imports
from catalog.sync import litellm
from catalog.sync.bundle import rebuild_bundle, render_bundle
from catalog.sync.documents import UnreadableList, read_json
from config.bulk.files import read_input, refuse


class Command(BaseCommand):
    help = "Writes new prices into the catalogue that the demo loads; for developers."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", help="the price file of a release of the package litellm")
        parser.add_argument("--as-of", metavar="DAY", required=True, help="the day of the file")
        parser.add_argument("--output", metavar="FILE", help="write here, not into the project")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            as_of = date.fromisoformat(options["as_of"])
        except ValueError:
            raise CommandError("--as-of must be a day such as 2026-11-12.", returncode=2) from None
        try:
            found = litellm.read_list(read_json(read_input(options["file"])), as_of)
        except UnreadableList as exc:
            refuse(f"{exc} Nothing was written.")
        present = json.loads(imports.BUNDLED.read_text(encoding="utf-8"))
        bundle, left_out = rebuild_bundle(present, found, as_of=as_of)
        if not bundle["endpoints"]:
            refuse("The list has no price of any endpoint. Nothing was written.")
        text = render_bundle(bundle)
        imports.parse(text.encode())
        Path(options["output"] or imports.BUNDLED).write_text(text, encoding="utf-8")
        for line in left_out:
            self.stderr.write(f"left out: {line}")
        self.stdout.write(
            f"{len(bundle['providers'])} providers, {len(bundle['models'])} models, "
            f"{len(bundle['endpoints'])} endpoints"
        )
