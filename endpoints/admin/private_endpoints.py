"""The page of private endpoints."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.timesince import timesince

from accounts.admin.uploads import OrganizationExportForm, OrganizationUploadForm
from accounts.models import ByokCredential
from billing.admin.excesses import UnderReviewFilter, count_reviews, reviews_of
from catalog.admin.prices import PRICING, edit_price
from catalog.models import LanguageModel
from catalog.pricing import RATES
from config.api.text import parse_uuid
from config.audit.context import actor_of
from config.bulk.report import Report, RowListener
from config.bulk.rows import read_lines
from config.changes.kinds import ChangeKind, FourEyes
from config.changes.proposals import PRICE
from config.clocks.clock import clock
from config.console.formatting import dollars, label_renderer, per_million
from config.console.unfold import display
from config.console.uploads import BulkFile, Upload
from config.models import TIME_COLUMNS
from endpoints import imports
from endpoints.admin.actions import PrivateEndpointActions
from endpoints.admin.forms import PrivateEndpointForm
from endpoints.admin.validations import OUTCOMES
from endpoints.history import SHOWN, events, render_operations, render_proofs
from endpoints.models import PrivateEndpoint, Validation
from inference.reports.usage import subjects
from inference.reports.usage.panel import show_usage

_KEPT: Final = "deleted, stays private until released"
_STATES: Final = {
    "draft": "info", "active": "success", "disabled": "warning", _KEPT: "warning",
}  # fmt: skip
_DRIFT: Final = {"drifted": "danger"}


class PrivateEndpointFile(BulkFile):
    """The private endpoints of an organization."""

    upload_form = OrganizationUploadForm
    export_form = OrganizationExportForm
    help = (
        'A file in JSON Lines: each line is a create request without "activate". A new endpoint '
        "becomes a draft, which you then validate and activate. A line may name an endpoint that "
        "was ever activated only if it changes nothing."
    )
    kinds = (ChangeKind.PRICES,)

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        assert upload.organization_id is not None
        lines = read_lines(io.BytesIO(upload.content))
        return imports.apply(upload.organization_id, lines, by=by, dry_run=dry_run, on_row=on_row)

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        return "private-endpoints.jsonl", imports.export(given["organization"].pk)


@admin.register(PrivateEndpoint)
class PrivateEndpointAdmin(PrivateEndpointActions):
    """Lists the endpoints of organizations; only the actions change an endpoint's status."""

    form = PrivateEndpointForm
    list_display = (
        "model", "provider_name", "state", "validated", "validated_ago", "drift", "organization",
        "region", "zdr", "price_text", "reviews",
    )  # fmt: skip
    list_select_related = (
        "organization",
        "model",
        "provider",
        "private_provider",
        "price",
        "validation",
    )
    list_filter = ("status", UnderReviewFilter, "declared_region", "provider")
    linked_lookups = (*PrivateEndpointActions.linked_lookups, "drifted_at__isnull")
    search_fields = ("model__name", "model__slug", "provider_name", "upstream_model_id")
    uuid_search_fields = ("id", "organization_id")
    ordering = ("-created_at", "-id")
    autocomplete_fields = ("organization", "model", "provider")
    empty_hint = (
        "Add an endpoint or import a file. Then open the endpoint, validate it and activate it."
    )
    form_guard = FourEyes((ChangeKind.PRICES,), fields=RATES, guards_new_rows=True)
    bulk_file = PrivateEndpointFile()
    actions_list = ("import_file", "export_file")
    edit_price = edit_price
    other_operations = {**PrivateEndpointActions.other_operations, PRICE: PRICING}
    reviews = reviews_of
    panels = {"usage": show_usage(subjects.of_private_endpoint)}
    add_fieldsets = (
        (
            None,
            {
                "fields": (
                    "organization", ("model", "provider"), ("own_model", "own_model_name"),
                    "upstream_model_id", "base_url",
                ),
                "description": "A new endpoint is a draft: validate it with a live call, then "
                "activate it. The base URL is an HTTPS address that ends with the version, such as "
                "https://llm.example.com/v1. Leave it empty if the credential contains it.",
            },
        ),
        ("Declarations", {"fields": (("declared_region", "declared_zdr"),)}),
        (
            "Negotiated price",
            {
                "fields": (("prompt", "completion"), ("cache_read", "cache_write")),
                "description": "Leave all four empty to charge the public list price.",
            },
        ),
        (
            "Limits of time",
            {
                "classes": ["collapse"],
                "fields": TIME_COLUMNS,
                "description": "Empty fields, and longer times, mean the limits of the settings.",
            },
        ),
    )  # fmt: skip
    fieldsets = (
        (
            None,
            {"fields": (("state", "validated", "drift"), ("model", "provider"), "organization")},
        ),
        ("Upstream", {"fields": ("base_url", "upstream_model_id", "credentials")}),
        ("Declarations", {"fields": (("declared_region", "declared_zdr"), "fallback")}),
        ("Price", {"fields": (("rates", "reviews"),)}),
        ("Limits of time", {"classes": ["collapse"], "fields": TIME_COLUMNS}),
        ("Operations and parameters", {"fields": ("operations", "proofs")}),
        ("History", {"fields": ("history",)}),
        (
            "Record",
            {
                "classes": ["collapse"],
                "fields": (
                    ("activated_at", "activated_by"),
                    ("disabled_at", "disabled_by"),
                    "disabled_reason",
                    ("deleted_at", "deleted_by"),
                    ("released_at", "released_by"),
                    ("watched_at", "drifted_at"),
                    ("created_at", "updated_at"),
                    "id",
                    "idempotency_key",
                ),
            },
        ),
    )
    readonly_fields = (
        "state", "validated", "drift", "credentials", "rates", "reviews", "operations",
        "proofs", "history", "activated_at", "activated_by",
        "disabled_at", "disabled_by", "disabled_reason", "deleted_at", "deleted_by",
        "released_at", "released_by", "watched_at", "drifted_at", "created_at",
        "updated_at", "id", "idempotency_key",
    )  # fmt: skip

    readonly_preprocess_fields = {
        "state": label_renderer(_STATES),
        "validated": label_renderer(OUTCOMES),
        "drift": label_renderer(_DRIFT),
    }

    @display(
        description="Status",
        ordering="status",
        label=_STATES,
    )
    def state(self, endpoint: PrivateEndpoint) -> str:
        return str(endpoint.status) if endpoint.deleted_at is None else _KEPT

    @display(description="Validation", label=OUTCOMES)
    def validated(self, endpoint: PrivateEndpoint) -> str:
        if endpoint.validation is None:
            return "none"
        return str(Validation.Outcome(endpoint.validation.outcome).label)

    @display(description="Validated")
    def validated_ago(self, endpoint: PrivateEndpoint) -> str:
        """Returns the age of the validation of the current configuration."""
        if endpoint.validation is None:
            return "never"
        return f"{timesince(endpoint.validation.created_at, clock.now(), depth=1)}\xa0ago"

    @display(description="Region")
    def region(self, endpoint: PrivateEndpoint) -> str:
        return endpoint.declared_region or ""

    @display(description="ZDR", label={"declared": "success", "denied": "warning"})
    def zdr(self, endpoint: PrivateEndpoint) -> str:
        if endpoint.declared_zdr is None:
            return ""
        return "declared" if endpoint.declared_zdr else "denied"

    @display(description="Events, latest first")
    def history(self, endpoint: PrivateEndpoint) -> str:
        return render_to_string(
            "admin/endpoints/history.html", {"events": events(endpoint), "shown": SHOWN}
        )

    @display(description="Credentials, in order of trial")
    def credentials(self, endpoint: PrivateEndpoint) -> str:
        """Returns the credentials of the provider, and whether their secrets travel to the host."""
        rows = (
            ByokCredential.objects.for_organization(endpoint.organization_id)
            .filter(provider_slug=endpoint.upstream_provider.slug, disabled=False)
            .select_related("workspace")
            .order_by("is_fallback", "sort_order", "created_at")[:SHOWN]
        )
        lines = (
            (
                credential,
                credential.workspace.name if credential.workspace else "all workspaces",
                _describe_travel(endpoint, credential),
            )
            for credential in rows
        )
        return format_html_join("", "<div>{} in {}: {}</div>", lines) or "none"

    @display(description="Drift", label=_DRIFT)
    def drift(self, endpoint: PrivateEndpoint) -> str:
        return "" if endpoint.drifted_at is None else "drifted"

    @display(description="Price / M")
    def price_text(self, endpoint: PrivateEndpoint) -> str:
        prompt, completion = endpoint.price.prompt, endpoint.price.completion
        return f"{per_million(prompt)} / {per_million(completion)}"

    @display(description="Operations")
    def operations(self, endpoint: PrivateEndpoint) -> str:
        return "" if endpoint.validation is None else render_operations(endpoint.validation)

    @display(description="What a validation has shown")
    def proofs(self, endpoint: PrivateEndpoint) -> str:
        return "" if endpoint.validation is None else render_proofs(endpoint.validation)

    @display(description="Rates")
    def rates(self, endpoint: PrivateEndpoint) -> str:
        rows = (
            (name.replace("_", " "), dollars(rate), per_million(rate))
            for name in RATES
            if (rate := getattr(endpoint.price, name)) is not None
        )
        return format_html_join("", "<div>{}: {} per token ({} per million)</div>", rows)

    def read_columns(self, request: HttpRequest, rows: list[Any]) -> None:
        super().read_columns(request, rows)
        count_reviews(rows)

    def get_queryset(self, request: HttpRequest) -> Any:
        # The model of a deleted endpoint can still be released.
        kept = Q(deleted_at=None) | Q(activated_at__isnull=False, released_at=None)
        rows = super().get_queryset(request).filter(kept)
        # The list names what it needs. A page names these too.
        match = request.resolver_match
        if match is None or str(match.url_name).endswith("_changelist"):
            return rows
        return rows.select_related(*self.list_select_related)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Searches model names in the table of models, because there are far fewer models."""
        if parse_uuid(search_term.strip()) is not None:
            return super().get_search_results(request, queryset, search_term)
        for word in search_term.split():
            models = LanguageModel.objects.of_everybody().filter(
                Q(name__icontains=word) | Q(slug__icontains=word)
            )
            queryset = queryset.filter(
                Q(model__in=list(models.values_list("pk", flat=True)))
                | Q(provider_name__icontains=word)
                | Q(upstream_model_id__icontains=word)
            )
        return queryset, False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def create(self, request: HttpRequest, obj: Any, form: Any) -> PrivateEndpoint:
        endpoint, _ = PrivateEndpoint.objects.create_draft(
            organization_id=obj.organization_id,
            **form.named_model,
            provider_slug=obj.provider.slug,
            upstream_model_id=obj.upstream_model_id,
            base_url=obj.base_url,
            declared_region=obj.declared_region,
            declared_zdr=obj.declared_zdr,
            price=form.negotiated_price,
            time_limits=obj.time_limits,
            by=actor_of(request),
        )
        return endpoint


def _describe_travel(endpoint: PrivateEndpoint, credential: ByokCredential) -> str:
    if endpoint.base_url is None:
        return "is sent to the host that it names"
    limits = credential.host_limits(endpoint.upstream_provider.own_hosts())
    if (reason := limits.refusal(endpoint.host)) is not None:
        return f"is not sent. {reason}"
    if limits.is_open:
        return f"is sent to {endpoint.host}, which binds it"
    return f"is sent to {endpoint.host}"
