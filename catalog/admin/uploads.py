"""The base of the catalogue's pages, which import and export one file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from catalog import imports
from config.bulk.report import Report, RowListener
from config.console.unfold import display
from config.console.uploads import Upload, UploadsAdmin

_LISTED: Final = {"listed": "success", "not listed": "warning"}


class CatalogueAdmin(UploadsAdmin):
    """A page of one part of the catalogue; a file holds providers, models and endpoints."""

    upload_help = (
        "A catalogue file in JSON with providers, models and endpoints. Rows that the file does "
        "not name stay as they are. Changed rates become a new price version."
    )
    empty_hint = "Import a catalogue file, or add providers, models and endpoints in this order."
    written_models = ("catalog.provider", "catalog.languagemodel", "catalog.modelendpoint")

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        return imports.apply(imports.parse(upload.content), dry_run=dry_run, on_row=on_row)

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        data, _ = imports.export()
        return "catalogue.json", [data]

    @display(description="Catalogue", ordering="is_listed", label=_LISTED)
    def listing(self, row: Any) -> str:
        return "listed" if row.is_listed else "not listed"
