"""The pages of cells and of the directory of their organizations."""

from __future__ import annotations

from typing import Any
from urllib.parse import urljoin

from django.contrib import admin
from django.db.models import OuterRef, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from accounts.models import Cell, CellIdentity, DirectoryEntry, Residence
from config.cells import HOME
from config.console.base import ConsoleAdmin, ReadOnlyAdmin
from config.console.unfold import display


@admin.register(Cell)
class CellAdmin(ConsoleAdmin):
    """Lists the cells besides the home cell, which alone may change them."""

    list_display = ("name", "base_url", "shard", "created_at")
    search_fields = ("name", "base_url")
    uuid_search_fields = ()
    readonly_fields = ("shard", "created_at")
    fields = ("name", "base_url", "shard", "created_at")
    empty_hint = (
        "All organizations live in this cell. docs/deploy/cells says when to add another one."
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "name") if obj else self.readonly_fields

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Cell:
        return Cell.objects.create_cell(name=obj.name, base_url=obj.base_url)


class CellFilter(admin.SimpleListFilter):
    title = "cell"
    parameter_name = "cell"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in (HOME, *Cell.objects.values_list("name", flat=True))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(cell=self.value()) if self.value() else queryset


@admin.register(DirectoryEntry)
class DirectoryEntryAdmin(ReadOnlyAdmin):
    """Lists the organizations of all cells, with links to their pages in their own consoles."""

    list_display = ("name", "slug", "code", "cell", "residence", "page")
    list_filter = (CellFilter,)
    search_fields = ("name", "slug", "code__exact")
    uuid_search_fields = ("organization_id",)
    fields = ("name", "slug", "code", "cell", "residence", "organization_id", "page")
    readonly_fields = fields

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        cell = Cell.objects.filter(pk=OuterRef("cell")).values("base_url")
        here = CellIdentity.objects.values("name")[:1]
        # A row that has left stays in its former cell until it is deleted there.
        entries: QuerySet[Any] = super().get_queryset(request).exclude(residence=Residence.LEFT)
        located: QuerySet[Any] = entries.annotate(
            cell_url=Subquery(cell), here=Coalesce(Subquery(here), Value(HOME))
        )
        return located

    @display(description="Page")
    def page(self, entry: Any) -> str:
        path = reverse("admin:accounts_organization_change", args=[entry.organization_id])
        if entry.cell == entry.here:
            return format_html('<a href="{}">Open</a>', path)
        if entry.cell_url is None:
            return "—"
        url = urljoin(entry.cell_url, path)
        return format_html('<a href="{}" rel="noopener">Open in {}</a>', url, entry.cell)
