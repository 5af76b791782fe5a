"""The page of guardrails and of their assignments to keys and members."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, ClassVar, Final
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.http import HttpRequest

from accounts.admin.forms import CatalogueForm, DollarsField, initial_workspace, nano_of
from accounts.models import (
    ApiKey,
    ApiKeyNotFound,
    Guardrail,
    KeyAssignment,
    Member,
    MemberAssignment,
    MemberNotFound,
)
from accounts.policy import Family
from config.console.actions import Message, transition
from config.console.base import ConsoleAdmin, ReadOnlyInline, actor_of
from config.console.formatting import nano_dollars, plain_digits
from config.console.unfold import Dialog, SelectWidget, TabularInline, TextareaWidget, display


class GuardrailForm(CatalogueForm):
    """Takes the limits of a guardrail; content filters can be written through the API only."""

    limit = DollarsField(required=False, label="Budget in USD", help_text="For each key or member.")

    class Meta:
        labels = {
            "enforce_zdr": "Enforce ZDR (deprecated)",
            "enforce_zdr_anthropic": "Enforce ZDR, Anthropic",
            "enforce_zdr_google": "Enforce ZDR, Google",
            "enforce_zdr_openai": "Enforce ZDR, OpenAI",
            "enforce_zdr_xai": "Enforce ZDR, xAI",
            "enforce_zdr_other": "Enforce ZDR, others",
            "allow_safety_retention_google": "Allow safety retention, Google",
            "allow_safety_retention_other": "Allow safety retention, others",
            "include_byok_in_budgets": "Include BYOK in budgets",
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        nano = self.instance.limit_nano
        if nano is not None and "limit" in self.fields:
            self.initial["limit"] = plain_digits(Decimal(nano).scaleb(-9))

    @property
    def changes(self) -> dict[str, Any]:
        """Returns the changed fields of the model.

        A change of ``enforce_zdr`` sets every family that is not named. So the result also names
        the families that are set to yes or no on the form, even unchanged ones.
        """
        named = {name: self.cleaned_data[name] for name in self.changed_data}
        if "enforce_zdr" in named:
            for family in Family:
                value = self.cleaned_data[f"enforce_zdr_{family}"]
                if value is not None:
                    named[f"enforce_zdr_{family}"] = value
        if "limit" in named:
            named["limit_nano"] = nano_of(named.pop("limit"))
        return named


class KeyAssignmentInline(ReadOnlyInline, TabularInline):
    model = KeyAssignment
    verbose_name_plural = "keys"
    fields = ("api_key", "assigned_by", "created_at")
    readonly_fields = ("created_at", "assigned_by")

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).filter(api_key__deleted_at=None)
        return rows.select_related("api_key")


class MemberAssignmentInline(ReadOnlyInline, TabularInline):
    model = MemberAssignment
    verbose_name_plural = "members"
    fields = ("member", "assigned_by", "created_at")
    readonly_fields = ("created_at", "assigned_by")

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).select_related("member")


class _SubjectsDialog(Dialog):
    """Asks whether to assign or to remove the guardrail."""

    verb = forms.ChoiceField(
        choices=(("assign", "Assign"), ("unassign", "Remove")),
        widget=SelectWidget(),
        label="Operation",
    )


class KeysDialog(_SubjectsDialog):
    keys = forms.CharField(
        label="API key hashes",
        widget=TextareaWidget(attrs={"rows": 4}),
        help_text="Separate them by spaces or lines. A new guardrail replaces the current one of "
        "a key.",
    )


class MembersDialog(_SubjectsDialog):
    members = forms.CharField(
        label="Email addresses of members",
        widget=TextareaWidget(attrs={"rows": 4}),
        help_text="Separate them by spaces or lines. A new guardrail replaces the current one of "
        "a member.",
    )


_GUARDRAIL_LISTS: Final = (
    ("allowed_models", "ignored_models"), ("allowed_providers", "ignored_providers"),
    "allowed_data_regions",
)  # fmt: skip
_GUARDRAIL_SWITCHES: Final = (
    ("enforce_zdr", "enforce_zdr_anthropic"),
    ("enforce_zdr_google", "enforce_zdr_openai"),
    ("enforce_zdr_xai", "enforce_zdr_other"),
    ("allow_safety_retention_google", "allow_safety_retention_other"),
    ("enable_free_model_publication", "enable_free_model_training"),
    "enable_paid_model_training",
)  # fmt: skip


@admin.register(Guardrail)
class GuardrailAdmin(ConsoleAdmin):
    """Lists the guardrails; one limits its keys and members, or a whole workspace."""

    form = GuardrailForm
    list_display = ("name", "organization", "workspace_name", "applies_to", "budget", "created_at")
    list_select_related = ("organization", "workspace")
    search_fields = ("name", "organization__name")
    uuid_search_fields = ("id", "organization_id", "workspace_id")
    autocomplete_fields = ("workspace",)
    inlines = (KeyAssignmentInline, MemberAssignmentInline)
    actions_detail = ("assign_keys", "assign_members", "remove")
    _limits = (
        (
            "Lists",
            {
                "fields": _GUARDRAIL_LISTS,
                "description": "Separate entries by commas. An empty list does not limit.",
            },
        ),
        ("Switches", {"fields": _GUARDRAIL_SWITCHES}),
        ("Budget", {"fields": (("limit", "reset_interval"), "include_byok_in_budgets")}),
    )
    add_fieldsets = ((None, {"fields": ("workspace", "name", "description")}), *_limits)
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ("name", "description", ("organization", "workspace"), "applies_to")}),
        *_limits,
        ("Content filters", {"fields": ("content_filters", "content_filter_builtins")}),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = (
        "organization", "applies_to", "content_filters", "content_filter_builtins", "id",
        "created_at", "updated_at",
    )  # fmt: skip

    @display(description="Workspace", ordering="workspace__name")
    def workspace_name(self, guardrail: Guardrail) -> str | None:
        return guardrail.workspace.name if guardrail.workspace else None

    @display(description="Applies to")
    def applies_to(self, guardrail: Guardrail) -> str:
        workspace = guardrail.workspace
        is_default = workspace is not None and workspace.default_guardrail_id == guardrail.pk
        return "the whole workspace" if is_default else "assigned keys and members"

    @display(description="Budget")
    def budget(self, guardrail: Guardrail) -> str | None:
        if guardrail.limit_nano is None:
            return None
        return f"{nano_dollars(guardrail.limit_nano)} {guardrail.reset_interval}"

    def initial_for(self, tenant_id: UUID) -> dict[str, Any]:
        return initial_workspace(tenant_id)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "workspace") if obj else self.readonly_fields

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj else ()

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any
    ) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)
        if "workspace" in form.base_fields:
            form.base_fields["workspace"].required = True
        return form

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Guardrail:
        fields = form.changes
        guardrail: Guardrail = Guardrail.objects.create_guardrail(
            workspace=fields.pop("workspace"), name=fields.pop("name"), **fields
        )
        return guardrail

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if not change:
            super().save_model(request, obj, form, change)
            return
        Guardrail.objects.get(pk=obj.pk).edit(**form.changes)

    def has_assign_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.change_guardrail")

    @transition(
        description="Keys",
        question="Assigns the guardrail to inference keys, or removes it from them. It takes "
        "effect with their next request.",
        submit="Apply",
        permission="assign",
        icon="key",
        form=KeysDialog,
    )
    def assign_keys(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> Message:
        hashes = set(form.cleaned_data["keys"].split())
        rows = ApiKey.objects.for_organization(guardrail.organization_id).for_inference()
        keys = list(rows.filter(digest__in=hashes))
        if len(keys) != len(hashes):
            raise ApiKeyNotFound("One of the hashes is not an inference key of the organization.")
        if form.cleaned_data["verb"] == "assign":
            changed = guardrail.assign_keys(keys, by=actor_of(request))
            return messages.SUCCESS, f"Assigned to {changed} keys."
        return messages.SUCCESS, f"Removed from {guardrail.unassign_keys(keys)} keys."

    @transition(
        description="Members",
        question="Assigns the guardrail to members, or removes it from them. It applies to every "
        "key that a member created.",
        submit="Apply",
        permission="assign",
        icon="group",
        form=MembersDialog,
    )
    def assign_members(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> Message:
        addresses = set(form.cleaned_data["members"].split())
        rows = Member.objects.for_organization(guardrail.organization_id)
        members = list(rows.filter(email__in=addresses))
        if len(members) != len(addresses):
            raise MemberNotFound("One of the addresses is not a member of the organization.")
        if form.cleaned_data["verb"] == "assign":
            changed = guardrail.assign_members(members, by=actor_of(request))
            return messages.SUCCESS, f"Assigned to {changed} members."
        removed = guardrail.unassign_members(members)
        return messages.SUCCESS, f"Removed from {removed} members."

    def has_remove_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("accounts.delete_guardrail")

    @transition(
        description="Delete",
        question="The guardrail and its assignments are deleted and limit nothing any more. This "
        "cannot be undone.",
        submit="Delete the guardrail",
        permission="remove",
        icon="delete",
        danger=True,
    )
    def remove(self, request: HttpRequest, guardrail: Guardrail, form: Any) -> Message:
        text = f"{guardrail} is deleted."
        # Deletes a second instance: deletion clears the primary key, which the page still needs.
        Guardrail.objects.get(pk=guardrail.pk).remove()
        return messages.SUCCESS, text
