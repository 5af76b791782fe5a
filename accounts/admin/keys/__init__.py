"""The page of API keys, which shows a new key once."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from django.conf import settings
from django.contrib import admin
from django.db.models import OuterRef, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse

from accounts.admin import rate_limits
from accounts.admin.forms import initial_workspace
from accounts.admin.keys.actions import KeyActions, describe_limit
from accounts.admin.keys.preview import preview
from accounts.admin.keys.snippets import write_snippets
from accounts.models import ApiKey, LimitReset
from billing.budgets import spent_nano
from billing.models import Meter
from config.changes.kinds import ChangeKind, FourEyes
from config.clocks.clock import clock
from config.console.formatting import label_renderer, nano_dollars, render_page, render_table
from config.console.forms import ConsoleForm
from config.console.unfold import display
from config.credentials import Secret
from config.server.regions import region_of_host
from inference.admin import texts
from inference.reports.cancellations import DAYS, Cancellations, sum_today, sum_week
from inference.reports.usage import subjects
from inference.reports.usage.panel import show_usage

_KINDS: Final = {"management": "info"}
_KEY_STATES: Final = {
    "usable": "success", "expired": "warning", "paused": "warning", "revoked": "danger",
}  # fmt: skip


class ApiKeyStatusFilter(admin.SimpleListFilter):
    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(state, state) for state in _KEY_STATES]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        expired = queryset.filter(disabled=False, expires_at__lte=clock.now())
        match self.value():
            case "revoked":
                return queryset.exclude(deleted_at=None)
            case "paused":
                return queryset.filter(disabled=True, deleted_at=None)
            case "expired":
                return expired
            case "usable":
                return queryset.filter(disabled=False).exclude(expires_at__lte=clock.now())
            case _:
                return queryset


class PepperFilter(admin.SimpleListFilter):
    """Finds the keys that would be lost if all peppers but the first were removed."""

    title = "pepper"
    parameter_name = "pepper"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("first", "the first"), ("older", "only older ones")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() not in ("first", "older"):
            return queryset
        return queryset.filter(deleted_at=None).by_first_pepper(self.value() == "first")


class ApiKeyForm(ConsoleForm):
    class Meta:
        labels = {"is_management": "Management key"}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        workspace, creator = cleaned.get("workspace"), cleaned.get("creator")
        if workspace and creator and workspace.organization_id != creator.organization_id:
            self.add_error("creator", "The creator belongs to another organization.")
        return cleaned


def _show_cancellations(request: HttpRequest, key: ApiKey) -> str | None:
    """Returns the table of a key's page."""
    if not _is_for_inference(key):
        return None
    spans = (
        ("Today, of the latest 10,000 requests", sum_today(key)),
        (f"The last {DAYS} completed days", sum_week([key]).get(key.pk, Cancellations())),
    )
    rows = (
        (
            title,
            f"{found.requests:,}",
            f"{found.cancelled:,}",
            f"{found.share:.1%}",
            nano_dollars(found.upstream_nano),
        )
        for title, found in spans
    )
    headers = ("Time", "Requests", "Cancelled", "Share", "Upstream cost of the cancelled")
    return render_table(headers, rows)


def _meter_of(key: Any) -> Meter | None:
    """Returns the meter that the list has read, or reads it."""
    if not hasattr(key, "meter"):
        key.meter = Meter.objects.filter(pk=key.subject_id).first()
    meter: Meter | None = key.meter
    return meter


def _show_preview(request: HttpRequest, key: ApiKey) -> Any:
    if not _is_for_inference(key):
        return None
    region = region_of_host(request.get_host(), settings.REGION_HOSTS)
    return preview(key, request.GET, region=region)


def _is_for_inference(key: ApiKey) -> bool:
    """Returns whether requests can be sent with a key, for all that is known of it alone."""
    return key.deleted_at is None and not (key.is_management or key.successor_id)


@admin.register(ApiKey)
class ApiKeyAdmin(KeyActions):
    """Lists the API keys; a key is shown once, in the response to its creation."""

    list_display = (
        "name", "label", "kind", "status", "workspace", "spent", "limit", "last_used", "cancelled",
        "created_at",
    )  # fmt: skip
    list_select_related = ("organization", "workspace__organization")
    form = ApiKeyForm
    # The form of a stored key has no such field.
    form_guard = FourEyes(
        (ChangeKind.MANAGEMENT_KEYS,),
        fields=("is_management",),
        guards_new_rows=True,
        is_guarded=lambda key: False,
    )
    list_filter = (ApiKeyStatusFilter, "is_management", PepperFilter)
    search_fields = ("name", "label", "digest__exact")
    uuid_search_fields = ("id", "organization_id", "workspace_id")
    autocomplete_fields = ("workspace", "creator")
    empty_hint = "Add a key: choose its workspace, then copy the key, which is shown only once."
    limit_rates = rate_limits.limit_rates
    current_limits = rate_limits.current_limits
    delete_texts = texts.delete_texts
    panels = {
        "usage": show_usage(subjects.of_key),
        "cancellations": _show_cancellations,
        "preview": _show_preview,
    }
    change_form_outer_after_template = "admin/accounts/apikey/preview.html"
    add_fieldsets = (
        (None, {"fields": ("workspace", "name", "is_management", "expires_at", "creator")}),
    )
    fieldsets = (
        (None, {"fields": ("name", "expires_at")}),
        (
            "Key",
            {
                "fields": (
                    "label",
                    ("kind", "status"),
                    ("organization", "workspace"),
                    "issued_by_operator",
                )
            },
        ),
        (
            "Use",
            {
                "fields": (
                    ("spent_in_all", "last_used"),
                    "limit",
                    ("external_user", "creator"),
                )
            },
        ),
        ("Rate limits", {"fields": ("current_limits",)}),
        (
            "Record",
            {"classes": ["collapse"], "fields": ("id", "digest", ("created_at", "updated_at"))},
        ),
    )
    readonly_fields = (
        "label", "kind", "status", "organization", "limit", "spent_in_all", "last_used",
        "issued_by_operator", "external_user", "current_limits", "id", "digest", "created_at",
        "updated_at",
    )  # fmt: skip

    readonly_preprocess_fields = {
        "kind": label_renderer(_KINDS),
        "status": label_renderer(_KEY_STATES),
    }

    @display(description="Type", ordering="is_management", label=_KINDS)
    def kind(self, key: ApiKey) -> str:
        return "management" if key.is_management else "inference"

    @display(description="Status", label=_KEY_STATES)
    def status(self, key: ApiKey) -> str:
        if key.deleted_at is not None:
            return "revoked"
        if key.disabled:
            return "paused"
        return "usable" if key.is_usable else "expired"

    @display(description="Limit")
    def limit(self, key: ApiKey) -> str | None:
        return None if key.limit_nano is None else describe_limit(key)

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        """Reads the meters and the sums of all keys with one query each."""
        super().read_columns(request, rows)
        meters = Meter.objects.in_bulk([row.subject_id for row in rows])
        for row in rows:
            row.meter = meters.get(row.subject_id)
        sums = sum_week(rows)
        for row in rows:
            row.week = sums.get(row.pk, Cancellations())

    def get_queryset(self, request: HttpRequest) -> Any:
        """Lets the list be sorted by spending; a month begins with nothing."""
        # Keys name their workspaces, and these their organizations.
        rows = super().get_queryset(request)
        rows = rows.select_related("organization", "workspace__organization", "creator")
        month = clock.now().date().replace(day=1)
        meters = Meter.objects.filter(
            pk=Coalesce(OuterRef("successor_id"), OuterRef("pk")), day__gte=month
        )
        spent = Coalesce(Subquery(meters.values("cost_monthly")), Value(0))
        return rows.alias(spent_order=spent)

    @display(description="Spent this month", ordering="spent_order")
    def spent(self, key: ApiKey) -> str:
        meter = _meter_of(key)
        if meter is None:
            return ""
        today = clock.now().date()
        return nano_dollars(spent_nano(meter, LimitReset.MONTHLY, today, byok=False))

    @display(description="Spent")
    def spent_in_all(self, key: ApiKey) -> str:
        meter = _meter_of(key)
        if meter is None:
            return ""
        byok = f", and {nano_dollars(meter.byok)} by own credentials" if meter.byok else ""
        return f"{self.spent(key)} this month, {nano_dollars(meter.cost)} in all{byok}"

    @display(description="Last used")
    def last_used(self, key: ApiKey) -> Any:
        meter = _meter_of(key)
        return None if meter is None else meter.last_used_at

    @display(description="Cancelled")
    def cancelled(self, key: ApiKey) -> str:
        week: Cancellations = getattr(key, "week", Cancellations())
        return f"{week.share:.0%}" if week.cancelled else ""

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "workspace", "creator") if obj else self.readonly_fields

    def initial_for(self, tenant_id: UUID) -> dict[str, Any]:
        return initial_workspace(tenant_id)

    def create(self, request: HttpRequest, obj: Any, form: Any) -> ApiKey:
        key, secret = ApiKey.objects.create_key(
            workspace=obj.workspace,
            name=obj.name,
            is_management=obj.is_management,
            expires_at=obj.expires_at,
            creator=obj.creator,
            issued_by_operator=True,
        )
        # Only the response to this request shows the secret; see response_add.
        obj.issued_secret = secret
        return key

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        return self._show_secret(request, obj)

    def show_applied(self, request: HttpRequest) -> HttpResponse | None:
        made = getattr(request, "applied", None)
        return None if made is None else self._show_secret(request, made)

    def _show_secret(self, request: HttpRequest, obj: Any) -> HttpResponse:
        """Returns a page with a key, without a redirect: its message would be a cookie."""
        secret: Secret = obj.__dict__.pop("issued_secret")
        origin = request.build_absolute_uri("/").rstrip("/")
        return render_page(
            self,
            request,
            "admin/accounts/apikey/issued.html",
            f"API key {'rotated' if obj.former.exists() else 'created'}",
            headers={"Cache-Control": "no-store"},
            key=obj,
            kind="Management" if obj.is_management else "Inference",
            secret=secret.reveal(),
            base_url=f"{origin}/api/v1",
            snippets=write_snippets(obj, secret.reveal(), origin=origin),
            next=self.url_of(request, obj),
        )
