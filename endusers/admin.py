"""The operator's page for end users."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from config import console
from config.api import CONTROL_CHARACTERS
from config.console import ConsoleAdmin, ConsoleForm, display
from endusers.models import EndUser
from endusers.serializers import MAX_LENGTH


class EndUserForm(ConsoleForm):
    refusal_fields = {"already_registered": "user"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "user" in self.fields:
            # A tracking string is taken as it is: its spaces are part of it.
            self.fields["user"].strip = False  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        user = cleaned.get("user", "")
        if len(user) > MAX_LENGTH:
            self.add_error("user", f"Must have at most {MAX_LENGTH} characters.")
        if CONTROL_CHARACTERS.search(user):
            self.add_error("user", "Must not contain control characters.")
        return cleaned


@admin.register(EndUser)
class EndUserAdmin(ConsoleAdmin):
    """Tracking strings; the flag says what the organization thinks, and blocks nothing."""

    form = EndUserForm
    list_display = ("user", "organization", "state", "created_at")
    list_select_related = ("organization",)
    list_filter = ("is_active",)
    search_fields = ("user__exact",)
    search_help_text = "The whole tracking string, or an organization's id."
    uuid_search_fields = ("id", "organization_id")
    paginator = console.BoundedPaginator
    sortable_by = ()
    autocomplete_fields = ("organization",)
    actions = ("activate_selected", "deactivate_selected")
    add_fieldsets = ((None, {"fields": ("organization", "user")}),)
    fieldsets = (
        (None, {"fields": ("organization", "user", "is_active")}),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = ("id", "created_at", "updated_at")

    @display(description="State", label={"active": "success", "inactive": "warning"})
    def state(self, end_user: EndUser) -> str:
        return "active" if end_user.is_active else "inactive"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "organization", "user") if obj else self.readonly_fields

    def create(self, request: HttpRequest, obj: Any, form: Any) -> EndUser:
        return EndUser.objects.register(organization_id=obj.organization_id, user=obj.user)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            super().save_model(request, obj, form, change)
        elif form.cleaned_data["is_active"]:
            obj.activate()
        else:
            obj.deactivate()

    @console.bulk(
        description="Mark as active", question="Mark these end users active?", permission="change"
    )
    def activate_selected(self, request: HttpRequest, end_user: EndUser) -> None:
        end_user.activate()

    @console.bulk(
        description="Mark as inactive",
        question="Mark these end users inactive? Their requests are served as before.",
        permission="change",
    )
    def deactivate_selected(self, request: HttpRequest, end_user: EndUser) -> None:
        end_user.deactivate()
