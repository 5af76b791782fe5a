from __future__ import annotations

from typing import Any

from catalog import imports
from config.bulk.commands import ExportCommand
from config.bulk.files import write_output


class Command(ExportCommand):
    help = "Writes the catalogue in the format of import_catalog."

    def handle(self, *args: Any, **options: Any) -> None:
        self.require_separate_output(options)
        data, counts = imports.export()
        write_output(options["file"], [data])
        self.finish(counts, options)
