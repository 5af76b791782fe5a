"""The page of events."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from config.apps import event_kinds
from config.changes.deciding import hide_waiting
from config.console.base import ConsoleAdmin
from config.console.forms import part
from config.console.lists.tenants import annotate_organization, name_organization
from config.console.unfold import column, display
from config.events.outbox import Event


class EventKindFilter(admin.SimpleListFilter):
    """Filters by kind; lists all declared kinds, because a DISTINCT would read every event."""

    title = "kind"
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in event_kinds()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        kind = self.value()
        return queryset.filter(kind=kind) if kind else queryset


@admin.register(Event)
class EventAdmin(ConsoleAdmin):
    """Shows the events of the last 30 days, newest first."""

    is_read_only = True
    list_display = ("created_at", "kind", "sentence", "organization")
    list_display_links = ("created_at",)
    list_filter = (EventKindFilter,)
    search_fields = ("=once_key",)
    search_help_text = "The ID of an event or of an organization."
    uuid_search_fields = ("id", "organization_id")
    linked_lookups = ("organization_id__exact", "id__exact")
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        part(None, "kind", "sentence", "shown_data"),
        part("Record", "id", ("organization", "organization_id"), ("created_at", "dispatched_at")),
    )

    @display(description="Sentence")
    def sentence(self, event: Event) -> str:
        kind = event_kinds().get(event.kind)
        return event.kind if kind is None else kind.sentence(event.data)

    organization = column("Organization", lambda event: name_organization(event))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return hide_waiting(annotate_organization(super().get_queryset(request)), request)

    @display(description="Data")
    def shown_data(self, event: Event) -> str:
        text = json.dumps(event.data, ensure_ascii=False, indent=1)
        return format_html('<pre class="cw-sent">{}</pre>', text)
