"""The base of the catalogue's pages, which import and export one file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from django.contrib import messages
from django.http import HttpRequest

from catalog import imports
from catalog.models import Provider
from catalog.rows import find_column_problem
from config.bulk.problems import Problems
from config.bulk.report import Report, RowListener
from config.changes.kinds import ChangeKind
from config.console.actions import Message, bulk_action, transition
from config.console.base import ConsoleAdmin
from config.console.forms import ConsoleForm
from config.console.unfold import display
from config.console.uploads import BulkFile, Upload
from inference.reports.usage.consequences import foresee_all_off, foresee_off

_LISTED: Final = {"listed": "success", "not listed": "warning"}


def _require_hosts(catalog: imports.Catalog) -> None:
    """Raises :class:`ImportRefused` for providers whose stored secrets would go to another host."""
    stored = Provider.objects.in_bulk([row.slug for row in catalog.providers], field_name="slug")
    problems = Problems()
    for row in catalog.providers:
        provider = stored.get(row.slug)
        if provider is not None and (refusal := provider.explain_stay(row.dialect, row.base_url)):
            problems.add_at(f"the provider {row.slug}", refusal)
    problems.raise_if_any()


class CatalogueRowForm(ConsoleForm):
    """Takes no new value that a catalogue file could not have: its export could not be imported."""

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        for name in self.changed_data:
            if name in cleaned and (
                problem := find_column_problem(self._meta.model, name, cleaned[name])
            ):
                self.add_error(name, problem)
        return cleaned


class CatalogueFile(BulkFile):
    """A file with providers, models and endpoints."""

    help = (
        "A catalogue file in JSON with providers, models and endpoints. Rows that the file does "
        "not name stay as they are. Changed rates become a new price version."
    )
    kinds = (ChangeKind.PRICES, ChangeKind.CREDENTIALS)
    written = ("catalog.provider", "catalog.languagemodel", "catalog.modelendpoint")

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        catalog = imports.parse(upload.content)
        _require_hosts(catalog)
        return imports.apply(catalog, dry_run=dry_run, on_row=on_row)

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        data, _ = imports.export()
        return "catalogue.json", [data]


class CatalogueAdmin(ConsoleAdmin):
    """A page of one part of the catalogue; a file holds providers, models and endpoints."""

    actions = ("delist_selected", "relist_selected")
    actions_detail: Sequence[Any] = ("delist", "relist")

    empty_hint = "Import a catalogue file, or add providers, models and endpoints in this order."
    bulk_file = CatalogueFile()
    actions_list: Sequence[Any] = ("import_file", "export_file")

    def has_listing_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Returns whether the operator may change more of the catalogue than its prices."""
        may_change = request.user.has_perm("catalog.change_provider")
        return may_change and self.has_change_permission(request)

    def offers_action(self, request: HttpRequest, obj: Any, name: str) -> bool:
        if name in ("delist", "relist"):
            return (name == "delist") == bool(obj.is_listed)
        return super().offers_action(request, obj, name)

    @transition(
        "Take out of the catalogue",
        submit="Take it out",
        permission="listing",
        icon="visibility_off",
        danger=True,
        foresee=foresee_off,
    )
    def delist(self, request: HttpRequest, row: Any, form: Any) -> Message:
        """No new request uses it, and lists do not show it. Requests that run go on."""
        if row.delist():
            return messages.SUCCESS, f"{row} is out of the catalogue."
        return messages.INFO, f"{row} is out of the catalogue already."

    @transition(
        "Put into the catalogue", submit="Put it in", permission="listing", icon="visibility"
    )
    def relist(self, request: HttpRequest, row: Any, form: Any) -> Message:
        """New requests may use it again."""
        if row.relist():
            return messages.SUCCESS, f"{row} is in the catalogue again."
        return messages.INFO, f"{row} is in the catalogue already."

    @bulk_action("Take out of the catalogue", permission="listing", foresee=foresee_all_off)
    def delist_selected(self, request: HttpRequest, row: Any) -> None:
        """Take these out of the catalogue? No new request uses them."""
        row.delist()

    @bulk_action("Put into the catalogue", permission="listing")
    def relist_selected(self, request: HttpRequest, row: Any) -> None:
        """Put these into the catalogue? New requests may use them again."""
        row.relist()

    @display(description="Catalogue", ordering="is_listed", label=_LISTED)
    def listing(self, row: Any) -> str:
        return "listed" if row.is_listed else "not listed"
