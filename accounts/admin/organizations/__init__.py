"""The page of organizations, with their credits and links to their rows."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import (
    BigIntegerField,
    Exists,
    ExpressionWrapper,
    F,
    Max,
    OuterRef,
    Subquery,
    Sum,
    Value,
)
from django.db.models.functions import Coalesce
from django.http import HttpRequest

from accounts.admin import rate_limits
from accounts.admin.forms import CatalogueForm, DollarsFormField
from accounts.admin.organizations.limits import OwnLimitsDialog
from accounts.admin.organizations.overview import build_overview
from accounts.models import LIMIT_NAMES, Organization, OrganizationLimit, RateLimit, Workspace
from accounts.models.organizations import MAX_REASON
from billing import grants
from billing.models import Account, Meter
from config.audit.context import actor_of
from config.changes.kinds import ChangeKind, FourEyes
from config.clocks.clock import clock
from config.console.actions import Message, report, transition
from config.console.base import ConsoleAdmin, ReadOnlyInline
from config.console.formatting import nano_dollars, rounded_dollars, short_dollars
from config.console.forms import NoteField, part
from config.console.lists.filters import make_filter
from config.console.unfold import Dialog, TabularInline, display
from inference.admin import texts
from inference.models import DailyUsage, HourlyShare, UsageDay
from inference.reports.rollups import midnight
from inference.reports.usage import subjects
from inference.reports.usage.consequences import foresee_suspension
from inference.reports.usage.panel import show_usage
from inference.watch.anomalies import find_anomalies

_DAY: Final = timedelta(days=1)
_DAYS: Final = 30
_NANO: Final = BigIntegerField()
_STATES: Final = {"active": "success", "suspended": "danger"}
# Without an output field Django assumes 32 bits and drops the comparison as always true.
_AVAILABLE: Final = ExpressionWrapper(
    F("posted_credits") - F("posted_debits") - F("pending_debits"), output_field=_NANO
)


SuspensionFilter = make_filter(
    "status",
    "status",
    {
        "active": ("active", lambda rows: rows.filter(suspended_at=None)),
        "suspended": ("suspended", lambda rows: rows.exclude(suspended_at=None)),
    },
)


class BalanceFilter(admin.SimpleListFilter):
    """Finds the organizations whose credits are nearly spent, as the console's first page does."""

    title = "balance"
    parameter_name = "balance"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("low", f"low: below {short_dollars(settings.BALANCE_ALERT_NANO)}")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() != "low":
            return queryset
        low = (
            Account.objects.filter(
                organization=OuterRef("pk"), kind=Account.Kind.CREDITS, posted_credits__gt=0
            )
            .annotate(left=_AVAILABLE)
            .filter(left__lt=settings.BALANCE_ALERT_NANO)
        )
        return queryset.filter(Exists(low))


def _has_used() -> Exists:
    since = clock.now() - _DAYS * _DAY
    return Exists(Meter.objects.filter(organization=OuterRef("pk"), last_used_at__gte=since))


ActivityFilter = make_filter(
    "activity",
    "activity",
    {
        "recent": (f"in {_DAYS} days", lambda rows: rows.filter(_has_used())),
        "none": (f"none in {_DAYS} days", lambda rows: rows.filter(~_has_used())),
    },
)


class OrganizationColumns(ConsoleAdmin):
    """Adds ``balance``, ``spent``, ``last_activity`` and ``state``, with four queries a page."""

    def get_queryset(self, request: HttpRequest) -> Any:
        """Lets the list be sorted by what only operators see who may view usage."""
        rows = super().get_queryset(request)
        if "o" not in request.GET:
            return rows
        sees_usage = request.user.has_perm("inference.view_generation")
        return rows.alias(spent_order=_write_spending() if sees_usage else Value(0))

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        """Reads the amounts of all organizations, of those that the operator may see."""
        super().read_columns(request, rows)
        ids = [row.pk for row in rows]
        sees_money = request.user.has_perm("billing.view_account")
        sees_usage = request.user.has_perm("inference.view_generation")
        balances = _read_balances(ids) if sees_money else {}
        spent = _read_spending(ids) if sees_usage else {}
        used = _find_last_use(ids) if sees_usage else {}
        for row in rows:
            row.available_nano = balances.get(row.pk)
            row.spent_nano = spent.get(row.pk, 0) if sees_usage else None
            row.used_at = used.get(row.pk)

    @display(description="Available")
    def balance(self, organization: Any) -> str:
        nano = getattr(organization, "available_nano", None)
        return "" if nano is None else rounded_dollars(nano)

    @display(description="Spent in 30 days", ordering="spent_order")
    def spent(self, organization: Any) -> str:
        nano = getattr(organization, "spent_nano", None)
        return "" if nano is None else rounded_dollars(nano)

    @display(description="Last activity")
    def last_activity(self, organization: Any) -> datetime | None:
        return getattr(organization, "used_at", None)

    @display(description="Status", label=_STATES)
    def state(self, organization: Organization) -> str:
        return "suspended" if organization.is_suspended else "active"


def _read_balances(ids: list[UUID]) -> dict[UUID, int]:
    rows = Account.objects.filter(organization__in=ids, kind=Account.Kind.CREDITS)
    return dict(rows.annotate(left=_AVAILABLE).values_list("organization_id", "left"))


def _read_spending(ids: list[UUID]) -> dict[UUID, int]:
    rows = Organization.objects.filter(pk__in=ids).annotate(spent=_write_spending())
    return {owner: int(nano) for owner, nano in rows.values_list("pk", "spent")}


def _write_spending() -> Any:
    """Returns the spending by stored sums, which lack at most the last two hours, as SQL."""
    owner = OuterRef("pk")
    first = clock.now().date() - (_DAYS - 1) * _DAY
    days = DailyUsage.objects.filter(organization=owner, by_end_user=False, day_id__gte=first)
    summed = list(UsageDay.objects.filter(day__gte=first).values_list("day", flat=True))
    hours = HourlyShare.objects.filter(organization_id=owner, hour__gte=midnight(first))
    # Shares of keys are kept for three days, so that these are few.
    for day in sorted(summed)[-4:]:
        hours = hours.exclude(hour__gte=midnight(day), hour__lt=midnight(day) + _DAY)
    sums = (
        rows.order_by().values("organization_id").annotate(sum=Sum("cost_nano")).values("sum")
        for rows in (days, hours)
    )
    by_day, by_hour = (Coalesce(Subquery(sum_), Value(0), output_field=_NANO) for sum_ in sums)
    return by_day + by_hour


def _find_last_use(ids: list[UUID]) -> dict[UUID, datetime]:
    rows = Meter.objects.filter(organization__in=ids, last_used_at__isnull=False)
    return dict(rows.order_by().values_list("organization_id").annotate(Max("last_used_at")))


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
    may_see = request.user.has_perm("inference.view_generation")
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
        by = actor_of(request)
        if grants.grant_or_request(organization.pk, nano, by=by, note=form.cleaned_data["note"]):
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
