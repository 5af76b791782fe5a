"""The console's page for end users."""

from __future__ import annotations

import io
from collections.abc import Iterable
from itertools import chain
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from accounts.admin import rate_limits
from accounts.admin.uploads import OrganizationExportForm, OrganizationUploadForm
from accounts.models import Organization
from config.api.text import CONTROL_CHARACTERS, parse_uuid
from config.bulk.report import Report, RowListener
from config.bulk.rows import is_csv, read_lines
from config.clocks.clock import clock
from config.console.actions import bulk_action
from config.console.base import ConsoleAdmin
from config.console.formatting import nano_dollars
from config.console.forms import RECORD, ConsoleForm, part
from config.console.unfold import SelectWidget, column, display
from config.console.uploads import BulkFile, Upload
from endusers import imports
from endusers.models import EndUser
from endusers.serializers import MAX_LENGTH
from inference.reports.activity import Activity, completed_days
from inference.reports.usage import subjects
from inference.reports.usage.panel import show_usage


class EndUserForm(ConsoleForm):
    class Meta:
        labels = {"is_active": "Active"}

    refusal_fields = {"already_registered": "user"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "user" in self.fields:
            # A tracking string is stored as it is, with its leading and trailing spaces.
            self.fields["user"].strip = False  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        user = cleaned.get("user", "")
        if len(user) > MAX_LENGTH:
            self.add_error("user", f"Must have at most {MAX_LENGTH} characters.")
        if CONTROL_CHARACTERS.search(user):
            self.add_error("user", "Must not contain control characters.")
        return cleaned


class EndUserExportForm(OrganizationExportForm):
    as_csv = forms.ChoiceField(
        label="Format",
        choices=(("csv", "CSV"), ("jsonl", "JSON lines")),
        widget=SelectWidget(),
    )


class EndUserFile(BulkFile):
    """The end users of an organization."""

    upload_form = OrganizationUploadForm
    export_form = EndUserExportForm
    help = (
        "A CSV file with the header user or user,is_active, or a file in JSON Lines with these "
        "members. New end users are registered. Known end users get the is_active of their row, "
        "if it has one."
    )

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        assert upload.organization_id is not None
        as_csv, lines = is_csv(upload.name, read_lines(io.BytesIO(upload.content)))
        return imports.apply(
            upload.organization_id, lines, as_csv=as_csv, dry_run=dry_run, on_row=on_row
        )

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        as_csv = given["as_csv"] == "csv"
        rows = imports.export(given["organization"].pk, as_csv=as_csv)
        if as_csv:
            return "end-users.csv", chain([imports.CSV_HEADER], rows)
        return "end-users.jsonl", rows


@admin.register(EndUser)
class EndUserAdmin(ConsoleAdmin):
    """Lists the end users; an inactive end user's requests are still served."""

    form = EndUserForm
    list_display = ("user", "organization", "state", "created_at")
    list_select_related = ("organization",)
    list_filter = ("is_active",)
    walked_lookups = frozenset({"is_active__exact"})
    search_fields = ("user__startswith",)
    search_help_text = "The beginning of a tracking string, or the ID of an organization."
    ordering = ("-created_at", "-id")
    sortable_by = ()
    autocomplete_fields = ("organization",)
    actions = ("activate_selected", "deactivate_selected")
    actions_list = ("import_file", "export_file")
    actions_detail = ("limit_rates",)
    limit_rates = rate_limits.limit_rates
    current_limits = rate_limits.current_limits
    bulk_file = EndUserFile()
    panels = {"usage": show_usage(subjects.of_end_user)}
    empty_hint = "Add an end user, import a file, or register end users with a management key."
    add_fieldsets = (part(None, "organization", "user"),)
    fieldsets = (
        part(None, "organization", "user", "is_active"),
        part("Last 30 days", ("last_used", "requests", "tokens"), ("spend", "byok_spend")),
        part("Rate limits", "current_limits"),
        RECORD,
    )
    fixed_fields = ("organization", "user")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Chooses the search by the shape of the term, so that it reads one range of one index."""
        term = search_term.strip()
        if not term:
            return queryset, False
        key = parse_uuid(term)
        if key is None:
            # The order of the index puts an exact match first.
            return queryset.filter(user__startswith=term).order_by("user", "id"), False
        if Organization.objects.filter(pk=key).exists():
            return queryset.filter(organization_id=key), False
        return queryset.filter(Q(pk=key) | Q(user=term)), False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).select_related("organization")

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Returns an end user with its activity, which only the page of an end user shows."""
        found = super().get_object(request, object_id, from_field)
        if found is not None:
            found.activity = Activity(
                found.organization_id,
                [clock.now().date(), *completed_days()],
                end_user=found.user,
            ).rows()
        return found

    @display(description="Last used on")
    def last_used(self, end_user: Any) -> str:
        return str(end_user.activity[0]["date"]) if end_user.activity else "not in these days"

    requests = column("Requests", lambda end_user: f"{_total(end_user, 'requests'):,}")

    @display(description="Tokens")
    def tokens(self, end_user: Any) -> str:
        return f"{_total(end_user, 'prompt_tokens') + _total(end_user, 'completion_tokens'):,}"

    spend = column("Credits spent", lambda end_user: nano_dollars(_total(end_user, "cost_nano")))
    byok_spend = column("BYOK usage", lambda end_user: nano_dollars(_total(end_user, "byok_nano")))

    @display(description="State", label={"active": "success", "inactive": "warning"})
    def state(self, end_user: EndUser) -> str:
        return "active" if end_user.is_active else "inactive"

    def create(self, request: HttpRequest, obj: Any, form: Any) -> EndUser:
        return EndUser.objects.register(organization_id=obj.organization_id, user=obj.user)

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        if form.cleaned_data["is_active"]:
            obj.activate()
        else:
            obj.deactivate()

    @bulk_action("Mark as active", permission="change")
    def activate_selected(self, request: HttpRequest, end_user: EndUser) -> None:
        """Mark these end users active?"""
        end_user.activate()

    @bulk_action("Mark as inactive", permission="change")
    def deactivate_selected(self, request: HttpRequest, end_user: EndUser) -> None:
        """Mark these end users inactive? Their requests are still served."""
        end_user.deactivate()


def _total(end_user: Any, name: str) -> int:
    return sum(row[name] for row in end_user.activity)
