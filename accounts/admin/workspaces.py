"""The page of workspaces and their budgets."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from accounts.admin import rate_limits
from accounts.admin.forms import DollarsFormField, nano_of
from accounts.models import WORKSPACE_SLUG, ApiKey, BudgetInterval, Workspace, WorkspaceBudget
from config.audit.context import actor_of
from config.changes.kinds import ChangeKind, FourEyes
from config.console.actions import Message, transition
from config.console.base import ConsoleAdmin, ReadOnlyInline
from config.console.formatting import nano_dollars
from config.console.forms import RECORD, ConsoleForm, part
from config.console.unfold import Dialog, SelectWidget, TabularInline, column, display
from inference.admin import texts
from inference.reports.usage import subjects
from inference.reports.usage.panel import show_usage

_RATE: Final = "io_logging_sampling_rate"


class BudgetInline(ReadOnlyInline, TabularInline):
    model = WorkspaceBudget
    fields = ("interval", "limit", "updated_at")
    readonly_fields = ("limit", "updated_at")
    ordering = ("interval",)

    limit = column("Limit", lambda budget: nano_dollars(budget.limit_nano))


class BudgetDialog(Dialog):
    """Asks for the interval and the amount of a budget."""

    interval = forms.ChoiceField(choices=BudgetInterval.choices, widget=SelectWidget())
    limit = DollarsFormField(
        required=False, label="Amount in USD", help_text="Leave it empty to remove the budget."
    )


class WorkspaceForm(ConsoleForm):
    class Meta:
        labels = {"is_default": "Default"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if _RATE in self.fields:
            self.fields[_RATE].required = False

    def clean_io_logging_sampling_rate(self) -> Any:
        """Keeps the rate where the field is left empty."""
        rate = self.cleaned_data[_RATE]
        return self.instance.io_logging_sampling_rate if rate is None else rate

    def clean_slug(self) -> str:
        slug: str = self.cleaned_data["slug"]
        if not WORKSPACE_SLUG.fullmatch(slug):
            raise ValidationError("Must consist of lower-case letters, digits and single hyphens.")
        return slug


@admin.register(Workspace)
class WorkspaceAdmin(ConsoleAdmin):
    """Lists the workspaces of organizations."""

    form = WorkspaceForm
    form_guard = FourEyes((ChangeKind.GUARDRAILS,), fields=("fallback",))
    locks_tenant_first = True
    inlines = (BudgetInline,)
    actions_detail = ("budget", "limit_rates", "delete_texts")
    limit_rates = rate_limits.limit_rates
    current_limits = rate_limits.current_limits
    delete_texts = texts.delete_texts
    panels = {"usage": show_usage(subjects.of_workspace)}
    list_display = ("name", "organization", "slug", "is_default", "created_at")
    list_select_related = ("organization",)
    list_filter = ("is_default",)
    search_fields = ("name", "slug", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    autocomplete_fields = ("organization",)
    prepopulated_fields = {"slug": ("name",)}
    add_fieldsets = (part(None, "organization", "name", "slug"),)
    fieldsets = (
        part(None, "organization", "name", "slug", "is_default"),
        part("Private models", "fallback"),
        part("Kept answers", "is_answer_storage_enabled", "is_response_caching_enabled"),
        part("Broadcast", "is_observability_broadcast_enabled", "destinations"),
        part(
            "Input/output logging",
            "is_observability_io_logging_enabled",
            ("io_logging_sampling_rate", "io_logging_retention_days"),
            "logged_keys",
        ),
        part("Rate limits", "current_limits"),
        RECORD,
    )
    fixed_fields = ("organization", "is_default")

    @display(description="Keys that are logged")
    def logged_keys(self, workspace: Workspace) -> str:
        numbers = workspace.io_logging_api_key_ids
        if numbers is None:
            return "all keys of the workspace"
        keys = ApiKey.objects.filter(organization=workspace.organization_id, deleted_at=None)
        return ", ".join(str(key) for key in keys if key.number in numbers) or "none"

    def get_queryset(self, request: HttpRequest) -> Any:
        # An autocomplete names each workspace with its organization.
        rows = super().get_queryset(request).filter(deleted_at=None)
        return rows.select_related("organization")

    @display(description="Destinations")
    def destinations(self, workspace: Workspace) -> str:
        rows = workspace.destinations.order_by("created_at", "id")
        names = [f"{row} ({row.host})" if row.is_enabled else f"{row} (off)" for row in rows]
        return ", ".join(names) or "none"

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Workspace:
        return Workspace.objects.create_workspace(
            organization_id=obj.organization_id,
            name=obj.name,
            slug=obj.slug,
            created_by=actor_of(request),
        )

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        stored = Workspace.objects.get(pk=obj.pk)
        stored.edit(**{name: form.cleaned_data[name] for name in form.changed_data})

    @transition(
        "Budget",
        submit="Set the budget",
        permission="accounts.change_workspace",
        icon="savings",
        form=BudgetDialog,
    )
    def budget(self, request: HttpRequest, workspace: Workspace, form: Any) -> Message:
        """Limits the spending of the whole workspace in an interval. It must be less than the
        budget of every longer interval.
        """
        interval = BudgetInterval(form.cleaned_data["interval"])
        nano = nano_of(form.cleaned_data["limit"])
        if nano is None:
            had = workspace.lift_budget(interval)
            text = (
                f"The {interval} budget is removed." if had else f"There is no {interval} budget."
            )
            return messages.SUCCESS if had else messages.INFO, text
        if nano == 0:
            return messages.ERROR, "A budget must be greater than 0. Nothing was changed."
        workspace.set_budget(interval, limit_nano=nano)
        return messages.SUCCESS, f"The {interval} budget is {nano_dollars(nano)}."
