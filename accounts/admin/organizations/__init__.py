"""The page of organizations, with their credits and links to their rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import uuid4

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from accounts.admin import rate_limits
from accounts.admin.forms import CatalogueForm, DollarsFormField
from accounts.admin.organizations.columns import (
    ActivityFilter,
    BalanceFilter,
    OrganizationColumns,
    SuspensionFilter,
)
from accounts.admin.organizations.limits import OwnLimitsDialog
from accounts.admin.organizations.overview import build_overview
from accounts.models import LIMIT_NAMES, Organization, OrganizationLimit, RateLimit, Workspace
from accounts.models.organizations import MAX_REASON
from billing import grants
from config.audit.context import actor_of
from config.changes.kinds import ChangeKind, FourEyes
from config.console.actions import SEES_REQUESTS, Message, report, transition
from config.console.base import ReadOnlyInline
from config.console.formatting import nano_dollars
from config.console.forms import NoteField, part
from config.console.unfold import Dialog, TabularInline, display
from inference.admin import texts
from inference.reports.usage import subjects
from inference.reports.usage.consequences import foresee_suspension
from inference.reports.usage.panel import show_usage
from inference.watch.anomalies import find_anomalies


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

    amount = DollarsFormField(label="Amount in USD", help_text="At most nine decimals.")
    note = NoteField(required=False, help_text="The reason. The ledger stores it.")
    # The dialog's own, so that it grants once, however often it is sent.
    token = forms.UUIDField(required=False, initial=uuid4, widget=forms.HiddenInput)

    def clean_amount(self) -> Decimal:
        amount: Decimal = self.cleaned_data["amount"]
        if not amount:
            raise ValidationError("Must be greater than 0.")
        return amount


class SuspensionDialog(Dialog):
    """Asks for the reason, which every refused caller reads."""

    reason = NoteField(
        max_length=MAX_REASON,
        help_text="One sentence that says why, and whom to ask. Every refused caller reads it.",
    )


def _find_anomalies(request: HttpRequest, organization: Organization) -> Any:
    may_see = request.user.has_perm(SEES_REQUESTS)
    return find_anomalies(organization.pk) if may_see else ()


@admin.register(Organization)
class OrganizationAdmin(OrganizationColumns):
    """Lists the organizations, which own keys, endpoints and end users."""

    form = CatalogueForm
    form_guard = FourEyes(
        (ChangeKind.GUARDRAILS,),
        fields=(
            "requires_zdr",
            "forbids_training",
            "fallback",
            "allowed_providers",
            "ignored_providers",
        ),
    )
    list_display = (
        "name", "slug", "state", "balance", "spent", "last_activity", "limit", "created_at",
    )  # fmt: skip
    list_filter = (SuspensionFilter, BalanceFilter, ActivityFilter)
    search_fields = ("name", "slug")
    ordering = ("name",)
    inlines = (WorkspaceInline,)
    actions_detail = ("grant", "limit_rates", "limit_numbers", "suspend", "resume", "delete_texts")
    current_limits = rate_limits.current_limits
    delete_texts = texts.delete_texts
    panels = {
        "usage": show_usage(subjects.of_organization),
        "overview": build_overview,
        "anomalies": _find_anomalies,
    }
    empty_hint = (
        "Add an organization. It gets a default workspace; then add keys and grant credits."
    )
    change_form_outer_before_template = "admin/accounts/organization/summary.html"
    change_form_outer_after_template = None
    add_fieldsets = (part(None, "name", "endpoint_limit"),)
    fieldsets = (
        part(None, "name", "slug", "endpoint_limit"),
        part(
            "Preferences",
            "is_filtered_model_catalog_enabled",
            ("requires_zdr", "forbids_training"),
            ("allowed_providers", "ignored_providers"),
            "fallback",
            note="They apply to every key. Separate slugs by commas. An empty list does not limit.",
        ),
        part("Rate limits", "current_limits"),
        part("Record", "id", "routing_version", ("created_at", "updated_at"), folded=True),
    )
    fixed_fields = ("slug",)

    @display(description="Endpoint limit", ordering="endpoint_limit")
    def limit(self, organization: Organization) -> str:
        limit = organization.private_endpoint_limit
        return str(limit) if organization.endpoint_limit is not None else f"{limit} (default)"

    def create(self, request: HttpRequest, obj: Any, form: Any) -> Organization:
        return Organization.objects.create_organization(
            name=obj.name, endpoint_limit=obj.endpoint_limit
        )

    @transition(
        "Grant credits",
        submit="Grant the credits",
        permission="billing.add_transfer",
        icon="add_card",
        form=GrantDialog,
    )
    def grant(self, request: HttpRequest, organization: Organization, form: Any) -> Message:
        """The organization can spend the credits at once. An amount above the limit waits until
        another operator approves it. This cannot be undone.
        """
        nano = int(form.cleaned_data["amount"].scaleb(9))
        amount = nano_dollars(nano)
        is_granted = grants.grant_or_request(
            organization.pk,
            nano,
            by=actor_of(request),
            note=form.cleaned_data["note"],
            token=form.cleaned_data["token"],
        )
        if is_granted:
            return messages.SUCCESS, f"{amount} granted to {organization}."
        return (
            messages.WARNING,
            f"{amount} for {organization} waits for the approval of another operator.",
        )

    def offers_action(self, request: HttpRequest, obj: Organization, name: str) -> bool:
        if name in ("suspend", "resume"):
            return (name == "resume") == obj.is_suspended
        return super().offers_action(request, obj, name)

    @transition(
        "Suspend",
        submit="Suspend the organization",
        permission="accounts.change_organization",
        icon="block",
        danger=True,
        form=SuspensionDialog,
        foresee=foresee_suspension,
    )
    def suspend(self, request: HttpRequest, organization: Organization, form: Any) -> Message:
        """Every inference request of the organization is refused with 403 and the reason from now
        on. Running requests end as usual and are billed. Keys stay as they are, and management keys
        still work.
        """
        if organization.suspend(reason=form.cleaned_data["reason"], by=actor_of(request)):
            return messages.SUCCESS, f"{organization} is suspended."
        return messages.INFO, f"{organization} is suspended already; nothing was changed."

    @transition(
        "Resume",
        submit="Resume the organization",
        permission="accounts.change_organization",
        icon="play_arrow",
    )
    def resume(self, request: HttpRequest, organization: Organization, form: Any) -> Message:
        """Inference requests of the organization are served again."""
        if organization.resume():
            return messages.SUCCESS, f"{organization} is served again."
        return messages.INFO, f"{organization} is not suspended; nothing was changed."

    @transition(
        "Rate limits",
        submit="Set the limits",
        permission="change",
        icon="speed",
        form=rate_limits.RateLimitDialog,
    )
    def limit_rates(self, request: HttpRequest, organization: Organization, form: Any) -> Message:
        """Replaces the limits of all models together, or of the model that you name. An empty field
        limits nothing. The limits hold from the next request on, and the lowest of organization,
        workspace, key and end user rules.
        """
        limits = {name: form.cleaned_data[name] for name in LIMIT_NAMES}
        model = form.cleaned_data["model"]
        changes = limits if model is None else {"models": {model: limits}}
        is_changed = RateLimit.objects.change(rate_limits.owner_of(organization), changes)
        return rate_limits.tell_change(organization, is_changed=is_changed)

    @transition(
        "Limits",
        submit="Set the limits",
        permission="change",
        icon="straighten",
        form=OwnLimitsDialog,
    )
    def limit_numbers(self, request: HttpRequest, organization: Organization, form: Any) -> Message:
        """Sets how much the organization may have of each kind, in place of the service's limits.
        An empty field returns to the service's. What is above a lower limit stays, and nothing more
        can be added.
        """
        limits = {limit: form.cleaned_data[limit.value] for limit in OrganizationLimit}
        return report(
            organization.set_limits(limits),
            f"The limits of {organization} are changed.",
            f"The limits of {organization} were like this already.",
        )
