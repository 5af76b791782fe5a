"""The page of leases: which duty is due when, and which process does it."""

from __future__ import annotations

from django.contrib import admin

from config.clocks.leases import Lease
from config.console.base import ConsoleAdmin
from config.console.forms import part
from config.console.lists.filters import make_filter
from config.console.unfold import display

FailureFilter = make_filter(
    "last run", "failed", {"yes": ("failed", lambda rows: rows.filter(failures__gt=0))}
)


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
        part(None, "name", ("until", "every"), ("holder", "renewed_at")),
        part("Last run", ("succeeded_at", "failures"), "result"),
    )

    @display(description="Every")
    def every(self, lease: Lease) -> str:
        return "" if lease.every_seconds is None else f"{lease.every_seconds:g} s"
