"""The page of API keys, which shows a new key once."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.db.models import OuterRef, Subquery, Value
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse

from accounts.admin import rate_limits
from accounts.admin.forms import DollarsFormField, initial_workspace, nano_of
from accounts.admin.keys.preview import preview
from accounts.admin.keys.snippets import write_snippets
from accounts.models import ApiKey, LimitReset
from accounts.rotation import rotate_key
from billing.budgets import spent_nano
from billing.models import Meter
from config.api.text import parse_uuid, plain_digits
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.proposals import Difference
from config.clocks.clock import clock
from config.console.actions import SEES_REQUESTS, Message, bulk_action, report, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer, nano_dollars, render_page, render_table
from config.console.forms import ConsoleForm, part
from config.console.lists.filters import make_filter
from config.console.unfold import Dialog, SelectWidget, column, display
from config.credentials import Secret
from config.server.regions import region_of_host
from inference.admin import texts
from inference.reports.cancellations import DAYS, Cancellations, sum_today, sum_week
from inference.reports.usage import subjects
from inference.reports.usage.consequences import foresee_key, foresee_keys
from inference.reports.usage.panel import show_usage

_KINDS: Final = {"management": "info"}
_KEY_STATES: Final = {
    "usable": "success", "expired": "warning", "paused": "warning", "revoked": "danger",
}  # fmt: skip


ApiKeyStatusFilter = make_filter(
    "status",
    "status",
    {
        "usable": (
            "usable",
            lambda rows: rows.filter(disabled=False).exclude(expires_at__lte=clock.now()),
        ),
        "expired": (
            "expired",
            lambda rows: rows.filter(disabled=False, expires_at__lte=clock.now()),
        ),
        "paused": ("paused", lambda rows: rows.filter(disabled=True, deleted_at=None)),
        "revoked": ("revoked", lambda rows: rows.exclude(deleted_at=None)),
    },
)


def _current(rows: Any) -> Any:
    return rows.filter(deleted_at=None).not_ended()


# Finds the keys that would be lost if all peppers but the first were removed.
PepperFilter = make_filter(
    "pepper",
    "pepper",
    {
        "first": ("the first", lambda rows: _current(rows).by_first_pepper(True)),
        "older": ("only older ones", lambda rows: _current(rows).by_first_pepper(False)),
    },
)


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
    if not (_is_for_inference(key) and request.user.has_perm(SEES_REQUESTS)):
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
    return key.meter


def _show_preview(request: HttpRequest, key: ApiKey) -> Any:
    if not _is_for_inference(key):
        return None
    region = region_of_host(request.get_host(), settings.REGION_HOSTS)
    return preview(key, request.GET, region=region)


def _is_for_inference(key: ApiKey) -> bool:
    """Returns whether requests can be sent with a key, for all that is known of it alone."""
    return key.deleted_at is None and not (key.is_management or key.successor_id)


_CHANGE: Final = "accounts.change_apikey"


class LimitDialog(Dialog):
    """Asks for the most that a key may spend, with the present limit filled in."""

    limit = DollarsFormField(
        label="Limit in USD", required=False, help_text="At most nine decimals; empty for no limit."
    )
    limit_reset = forms.ChoiceField(
        label="Reset",
        choices=[("", "never"), *LimitReset.choices],
        required=False,
        widget=SelectWidget(),
        help_text="At midnight UTC; weeks begin on Monday.",
    )
    include_byok_in_limit = forms.BooleanField(
        label="Include BYOK",
        required=False,
        help_text="Counts what the organization's own credentials cost, too.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        key = ApiKey.objects.filter(pk=parse_uuid(self.object_id)).first()
        if key is not None:
            nano = key.limit_nano
            self.initial = {
                "limit": None if nano is None else plain_digits(Decimal(nano).scaleb(-9)),
                "limit_reset": key.limit_reset or "",
                "include_byok_in_limit": key.include_byok_in_limit,
            }


class RotateKeyDialog(Dialog):
    """Asks how long the former secret works."""

    overlap = forms.ChoiceField(
        label="The former secret works for",
        choices=[
            ("3600", "an hour"),
            ("86400", "a day"),
            ("604800", "a week"),
            ("0", "no time: it has leaked"),
        ],
        widget=SelectWidget(),
    )


def _describe_rotation(key: ApiKey, form: Any) -> list[Difference]:
    return [Difference("API key", key.label, "a new secret")]


@admin.register(ApiKey)
class ApiKeyAdmin(ConsoleAdmin):
    """Lists the API keys; a key is shown once, in the response to its creation."""

    actions = ("pause_selected", "resume_selected", "revoke_selected")
    actions_detail = (
        "limit_spending",
        "limit_rates",
        "rotate",
        "pause",
        "resume",
        "revoke",
        "delete_texts",
    )
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
    add_fieldsets = (part(None, "workspace", "name", "is_management", "expires_at", "creator"),)
    fieldsets = (
        part(None, "name", "expires_at"),
        part(
            "Key", "label", ("kind", "status"), ("organization", "workspace"), "issued_by_operator"
        ),
        part("Use", ("spent_in_all", "last_used"), "limit", ("external_user", "creator")),
        part("Rate limits", "current_limits"),
        part("Record", "id", "digest", ("created_at", "updated_at"), folded=True),
    )
    fixed_fields = ("workspace", "creator")
    initial_for = staticmethod(initial_workspace)

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

    limit = column("Limit", lambda key: None if key.limit_nano is None else describe_limit(key))

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        """Reads the meters and the sums of all keys with one query each, for who may see them."""
        super().read_columns(request, rows)
        sees_use = request.user.has_perm(SEES_REQUESTS)
        meters = Meter.objects.in_bulk([row.subject_id for row in rows]) if sees_use else {}
        for row in rows:
            row.meter = meters.get(row.subject_id)
        sums = sum_week(rows) if sees_use else {}
        for row in rows:
            row.week = sums.get(row.pk, Cancellations())

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Returns a key, without its meter for who may not see it."""
        key: Any = super().get_object(request, object_id, from_field)
        if key is not None and not request.user.has_perm(SEES_REQUESTS):
            key.meter = None
        return key

    def get_queryset(self, request: HttpRequest) -> Any:
        """Lets the list be sorted by spending, if it is shown; a month begins with nothing."""
        # Keys name their workspaces, and these their organizations.
        rows = super().get_queryset(request)
        rows = rows.select_related("organization", "workspace__organization", "creator")
        if not request.user.has_perm(SEES_REQUESTS):
            return rows.alias(spent_order=Value(0))
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

    def change(self, request: HttpRequest, obj: Any, form: Any) -> None:
        obj.edit(**{name: form.cleaned_data[name] for name in form.changed_data})

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Permits no change of a revoked key, nor of a former secret: both ended for good."""
        # Of an action, unfold passes the text of the key.
        if isinstance(obj, ApiKey) and (obj.deleted_at or obj.successor_id):
            return False
        return super().has_change_permission(request, obj)

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

    def offers_action(self, request: HttpRequest, obj: ApiKey, name: str) -> bool:
        if obj.successor_id is not None:
            return obj.deleted_at is None and name == "revoke"
        if name == "rotate" and obj.is_expired:
            return False
        return obj.deleted_at is None and name != ("pause" if obj.disabled else "resume")

    @transition(
        "Rotate",
        submit="Rotate the key",
        permission="accounts.add_apikey",
        icon="autorenew",
        form=RotateKeyDialog,
        four_eyes=FourEyes(
            (ChangeKind.MANAGEMENT_KEYS,),
            "accounts.add_apikey",
            is_guarded=lambda key: key.is_management,
            describe=_describe_rotation,
        ),
    )
    def rotate(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        """Gives this key a new secret, which is shown only once. Name, limits, usage and rights
        stay, but as with every key that an operator has seen, it reads no stored texts.
        """
        overlap = int(form.cleaned_data["overlap"])
        _, key.issued_secret = rotate_key(key, overlap=overlap, issued_by_operator=True)  # type: ignore[attr-defined]
        # The page with the secret is the answer; see show_applied.
        request.applied = key  # type: ignore[attr-defined]
        return messages.SUCCESS, "The key is rotated."

    @transition(
        "Limit spending", submit="Set the limit", permission=_CHANGE, icon="paid", form=LimitDialog
    )
    def limit_spending(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        """Replaces the limit of this key. It holds from the next request on; what the key has spent
        in the period counts.
        """
        changes = {
            "limit_nano": nano_of(form.cleaned_data["limit"]),
            "limit_reset": form.cleaned_data["limit_reset"] or None,
            "include_byok_in_limit": form.cleaned_data["include_byok_in_limit"],
        }
        if key.edit(**changes):
            return messages.SUCCESS, f"The key may spend {describe_limit(key)}."
        return messages.INFO, "The limit was like this already."

    @transition(
        "Pause", submit="Pause the key", permission=_CHANGE, icon="pause", foresee=foresee_key
    )
    def pause(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        """Every request with this key is refused from now on, until you resume it."""
        return report(key.pause(), "The key is paused.", "The key is already paused.")

    @transition("Resume", submit="Resume the key", permission=_CHANGE, icon="play_arrow")
    def resume(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        """Requests with this key are served again."""
        return report(key.resume(), "The key is resumed.", "The key is not paused.")

    @transition(
        "Revoke",
        submit="Revoke the key",
        permission=_CHANGE,
        icon="key_off",
        danger=True,
        foresee=foresee_key,
    )
    def revoke(self, request: HttpRequest, key: ApiKey, form: Any) -> Message:
        """Every request with this key is refused from now on. This cannot be undone."""
        return report(key.revoke(), "The key is revoked.", "The key is already revoked.")

    @bulk_action("Pause", permission=_CHANGE, foresee=foresee_keys)
    def pause_selected(self, request: HttpRequest, key: ApiKey) -> None:
        """Pause these keys? Every request with them is refused from now on, until you resume
        them.
        """
        key.pause()

    @bulk_action("Resume", permission=_CHANGE)
    def resume_selected(self, request: HttpRequest, key: ApiKey) -> None:
        """Resume these keys? Requests with them are served again."""
        key.resume()

    @bulk_action("Revoke", permission=_CHANGE, foresee=foresee_keys)
    def revoke_selected(self, request: HttpRequest, key: ApiKey) -> None:
        """Revoke these keys? Every request with them is refused from now on. This cannot be
        undone.
        """
        key.revoke()


def describe_limit(key: ApiKey) -> str:
    """Returns the limit in words: ``$5 a month, BYOK included``."""
    if key.limit_nano is None:
        return "without a limit"
    periods = {None: "in all", "daily": "a day", "weekly": "a week", "monthly": "a month"}
    byok = ", BYOK included" if key.include_byok_in_limit else ""
    return f"{nano_dollars(key.limit_nano)} {periods[key.limit_reset]}{byok}"
