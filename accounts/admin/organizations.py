"""The pages of organizations and of their members."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.urls import reverse

from accounts.admin.forms import CatalogueForm, DollarsField
from accounts.models import Member, Organization, Workspace
from billing import grants
from billing.models import Account
from config.api.text import parse_uuid
from config.console.actions import Message, transition
from config.console.base import ConsoleAdmin, ReadOnlyInline, actor_of
from config.console.formatting import nano_dollars
from config.console.forms import ConsoleForm, NoteField
from config.console.unfold import Dialog, TabularInline, display


class WorkspaceInline(ReadOnlyInline, TabularInline):
    model = Workspace
    fields = ("name", "slug", "is_default", "created_at")
    readonly_fields = ("created_at",)
    show_change_link = True
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).filter(deleted_at=None)


class GrantDialog(Dialog):
    """Asks how much an organization gets, and why."""

    amount = DollarsField(label="USD", help_text="With at most nine decimals.")
    note = NoteField(required=False, help_text="Why; the ledger keeps it.")

    def clean_amount(self) -> Decimal:
        amount: Decimal = self.cleaned_data["amount"]
        if not amount:
            raise ValidationError("Must be more than 0.")
        return amount


# What an organization has, by the permission that shows it.
_THEIRS: Final = {
    "billing.transfer": "Ledger",
    "billing.grantrequest": "Grant requests",
    "billing.topup": "Top-ups",
    "accounts.apikey": "API keys",
    "accounts.workspace": "Workspaces",
    "accounts.member": "Members",
    "accounts.guardrail": "Guardrails",
    "accounts.byokcredential": "Credentials",
    "endusers.enduser": "End users",
    "endpoints.privateendpoint": "Private endpoints",
    "inference.generation": "Generations",
}


@admin.register(Organization)
class OrganizationAdmin(ConsoleAdmin):
    """The parties that own keys, endpoints and end users."""

    form = CatalogueForm
    list_display = ("name", "slug", "limit", "created_at")
    search_fields = ("name", "slug")
    ordering = ("name",)
    inlines = (WorkspaceInline,)
    actions_detail = ("grant",)
    empty_hint = "Add an organization; it gets a default workspace, and then keys and credits."
    change_form_outer_before_template = "admin/accounts/organization/summary.html"
    add_fieldsets = ((None, {"fields": ("name", "endpoint_limit")}),)
    fieldsets = (
        (None, {"fields": ("name", "slug", "endpoint_limit")}),
        (
            "Preferences",
            {
                "description": "They hold for every key. Comma lists of slugs; empty: no limit.",
                "fields": (
                    "is_filtered_model_catalog_enabled",
                    ("requires_zdr", "forbids_training"),
                    ("allowed_providers", "ignored_providers"),
                ),
            },
        ),
        (
            "Record",
            {
                "classes": ["collapse"],
                "fields": ("id", "routing_version", ("created_at", "updated_at")),
            },
        ),
    )
    readonly_fields = ("id", "slug", "routing_version", "created_at", "updated_at")

    @display(description="Endpoint limit", ordering="endpoint_limit")
    def limit(self, organization: Organization) -> str:
        limit = organization.private_endpoint_limit
        return str(limit) if organization.endpoint_limit is not None else f"{limit} (default)"

    def get_inlines(self, request: HttpRequest, obj: Any) -> Any:
        return self.inlines if obj else ()

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Organization:
        return Organization.objects.create_organization(
            name=obj.name, endpoint_limit=obj.endpoint_limit
        )

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        summary = _summary(request, parse_uuid(unquote(object_id))) if object_id else None
        context = {**(extra_context or {}), "summary": summary}
        return super().changeform_view(request, object_id, form_url, context)

    def has_grant_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("billing.add_transfer")

    @transition(
        description="Grant credits",
        question="The organization can spend them at once, or as soon as another operator approves "
        "an amount above the limit. It cannot be undone.",
        submit="Grant the credits",
        permission="grant",
        icon="add_card",
        form=GrantDialog,
    )
    def grant(self, request: HttpRequest, organization: Organization, form: Any) -> Message:
        given = form.cleaned_data
        nano = int(given["amount"].scaleb(9))
        amount = nano_dollars(nano)
        by = actor_of(request)
        if grants.grant_or_request(organization.pk, nano, by=by, note=given["note"]):
            return messages.SUCCESS, f"{amount} granted to {organization}."
        return messages.WARNING, f"{amount} for {organization} wait for another operator."


def _summary(request: HttpRequest, organization_id: UUID | None) -> dict[str, Any] | None:
    """Returns what heads an organization's page: its credits, and the ways to what is theirs."""
    if organization_id is None:
        return None
    cards: list[tuple[str, str, str]] = []
    if request.user.has_perm("billing.view_account"):
        accounts = {
            account.kind: account for account in Account.objects.for_organization(organization_id)
        }
        if not accounts:
            return None
        purse = accounts[Account.Kind.CREDITS]
        # What usage cost beyond all credits was not spent; a write-off's balance is negative.
        written_off = -accounts[Account.Kind.WRITE_OFF].balance
        spent = accounts[Account.Kind.USAGE].balance - written_off
        lost = f"{nano_dollars(written_off)} more is written off" if written_off else ""
        cards = [
            ("Balance", nano_dollars(purse.balance), "granted and paid, less spent"),
            ("Available", nano_dollars(purse.available), "for new requests"),
            ("Held", nano_dollars(purse.pending_debits), "for requests under way"),
            ("Spent", nano_dollars(spent), lost),
        ]
    links = []
    for label, title in _THEIRS.items():
        app, model = label.split(".")
        if request.user.has_perm(f"{app}.view_{model}"):
            url = reverse(f"admin:{app}_{model}_changelist")
            links.append((title, f"{url}?organization__id__exact={organization_id}"))
    return {"cards": cards, "links": links}


class MemberForm(ConsoleForm):
    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        # Django looks for no other with the address where the organization is not on the form.
        organization_id = getattr(cleaned.get("organization"), "pk", self.instance.organization_id)
        others = Member.objects.filter(organization_id=organization_id).exclude(pk=self.instance.pk)
        if "email" in cleaned and others.filter(email=cleaned["email"]).exists():
            self.add_error("email", "Another member of the organization has it.")
        return cleaned


@admin.register(Member)
class MemberAdmin(ConsoleAdmin):
    """The people of organizations; none of them is a login."""

    form = MemberForm
    list_display = ("email", "organization", "first_name", "last_name", "role", "created_at")
    list_select_related = ("organization",)
    list_filter = ("role",)
    search_fields = ("email", "last_name", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    autocomplete_fields = ("organization",)
    fieldsets = (
        (None, {"fields": ("organization", "email", ("first_name", "last_name"), "role")}),
        ("Record", {"classes": ["collapse"], "fields": ("id", ("created_at", "updated_at"))}),
    )
    readonly_fields = ("id", "created_at", "updated_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "organization") if obj else self.readonly_fields
