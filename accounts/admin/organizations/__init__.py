"""The page of organizations, with their credits and links to their rows."""

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
from accounts.admin.organizations.suspension import SuspensionActions
from accounts.admin.rate_limits import RateLimitedAdmin
from accounts.models import Organization, Workspace
from billing import grants
from billing.models import Account
from config.api.text import parse_uuid
from config.console.actions import Message, transition
from config.console.base import ConsoleAdmin, ReadOnlyInline, actor_of
from config.console.formatting import nano_dollars
from config.console.forms import NoteField
from config.console.unfold import Dialog, TabularInline, display
from inference.reports.usage import subjects
from inference.reports.usage.panel import Subject, UsagePanel


class WorkspaceInline(ReadOnlyInline, TabularInline):
    model = Workspace
    fields = ("name", "slug", "is_default", "created_at")
    readonly_fields = ("created_at",)
    show_change_link = True
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> Any:
        rows = super().get_queryset(request).filter(deleted_at=None)
        return rows.select_related("organization")


class GrantDialog(Dialog):
    """Asks for the amount and the reason of a grant."""

    amount = DollarsField(label="Amount in USD", help_text="At most nine decimals.")
    note = NoteField(required=False, help_text="The reason. The ledger stores it.")

    def clean_amount(self) -> Decimal:
        amount: Decimal = self.cleaned_data["amount"]
        if not amount:
            raise ValidationError("Must be greater than 0.")
        return amount


# The titles of the lists that an organization's page links to. Each key names the model that the
# operator must have permission to view.
_LINKED: Final = {
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
class OrganizationAdmin(SuspensionActions, UsagePanel, RateLimitedAdmin, ConsoleAdmin):
    """Lists the organizations, which own keys, endpoints and end users."""

    form = CatalogueForm
    list_display = ("name", "slug", "limit", "created_at")
    search_fields = ("name", "slug")
    ordering = ("name",)
    inlines = (WorkspaceInline,)
    actions_detail = ("grant", "limit_rates", "suspend", "resume")
    empty_hint = (
        "Add an organization. It gets a default workspace; then add keys and grant credits."
    )
    change_form_outer_before_template = "admin/accounts/organization/summary.html"
    change_form_outer_after_template = None
    add_fieldsets = ((None, {"fields": ("name", "endpoint_limit")}),)
    fieldsets = (
        (None, {"fields": ("name", "slug", "endpoint_limit")}),
        (
            "Preferences",
            {
                "description": "They apply to every key. Separate slugs by commas. An empty list "
                "does not limit.",
                "fields": (
                    "is_filtered_model_catalog_enabled",
                    ("requires_zdr", "forbids_training"),
                    ("allowed_providers", "ignored_providers"),
                ),
            },
        ),
        ("Rate limits", {"fields": ("current_limits",)}),
        (
            "Record",
            {
                "classes": ["collapse"],
                "fields": ("id", "routing_version", ("created_at", "updated_at")),
            },
        ),
    )
    readonly_fields = (
        "id", "slug", "current_limits", "routing_version", "created_at", "updated_at",
    )  # fmt: skip

    def subject_of(self, obj: Organization) -> Subject:
        return subjects.of_organization(obj)

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
        question="The organization can spend the credits at once. An amount above the limit "
        "waits until another operator approves it. This cannot be undone.",
        submit="Grant the credits",
        permission="grant",
        icon="add_card",
        form=GrantDialog,
    )
    def grant(self, request: HttpRequest, organization: Organization, form: Any) -> Message:
        nano = int(form.cleaned_data["amount"].scaleb(9))
        amount = nano_dollars(nano)
        by = actor_of(request)
        if grants.grant_or_request(organization.pk, nano, by=by, note=form.cleaned_data["note"]):
            return messages.SUCCESS, f"{amount} granted to {organization}."
        return (
            messages.WARNING,
            f"{amount} for {organization} waits for the approval of another operator.",
        )


def _summary(request: HttpRequest, organization_id: UUID | None) -> dict[str, Any] | None:
    """Returns the top of an organization's page: its credits, and links to its rows."""
    if organization_id is None:
        return None
    cards: list[tuple[str, str, str]] = []
    if request.user.has_perm("billing.view_account"):
        accounts = {
            account.kind: account for account in Account.objects.for_organization(organization_id)
        }
        if not accounts:
            return None
        paid = accounts[Account.Kind.CREDITS]
        # The balance of the write-offs is negative. Usage that was written off was not spent.
        written_off = -accounts[Account.Kind.WRITE_OFF].balance
        spent = accounts[Account.Kind.USAGE].balance - written_off
        note = f"{nano_dollars(written_off)} more was written off" if written_off else ""
        cards = [
            ("Balance", nano_dollars(paid.balance), "all credits minus spending"),
            ("Available", nano_dollars(paid.available), "for new requests"),
            ("Held", nano_dollars(paid.pending_debits), "for running requests"),
            ("Spent", nano_dollars(spent), note),
        ]
    links = []
    for label, title in _LINKED.items():
        app, model = label.split(".")
        if request.user.has_perm(f"{app}.view_{model}"):
            url = reverse(f"admin:{app}_{model}_changelist")
            links.append((title, f"{url}?organization__id__exact={organization_id}"))
    return {"cards": cards, "links": links}
