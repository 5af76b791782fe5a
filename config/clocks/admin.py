"""The page of leases: which duty is due when, and which process does it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from config.clocks.leases import Lease
from config.console.base import ConsoleAdmin
from config.console.unfold import display


class FailureFilter(admin.SimpleListFilter):
    title = "last run"
    parameter_name = "failed"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "failed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(failures__gt=0) if self.value() == "yes" else queryset


@admin.register(Lease)
class LeaseAdmin(ConsoleAdmin):
    """Lists the scheduled duties of ``work``; nothing here changes anything."""

    is_read_only = True
    list_display = ("name", "until", "every", "holder", "succeeded_at", "failures", "result")
    list_filter = (FailureFilter,)
    search_fields = ("name", "holder")
    uuid_search_fields = ()
    ordering = ("name",)
    sortable_by = ()
    empty_hint = "Start `manage.py work`: each duty takes a lease when it is due."
    fieldsets = (
        (None, {"fields": ("name", ("until", "every"), ("holder", "renewed_at"))}),
        ("Last run", {"fields": (("succeeded_at", "failures"), "result")}),
    )
    readonly_fields = ("every",)

    @display(description="Every")
    def every(self, lease: Lease) -> str:
        return "" if lease.every_seconds is None else f"{lease.every_seconds:g} s"
