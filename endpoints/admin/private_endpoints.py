"""The page of private endpoints."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from accounts.admin.uploads import OrganizationExportForm, OrganizationUploadForm
from billing.admin.excesses import ReviewedEndpoints, UnderReviewFilter
from catalog.models import LanguageModel
from catalog.pricing import RATES
from config.api.text import parse_uuid
from config.bulk.report import Report, RowListener
from config.bulk.rows import read_lines
from config.changes.kinds import ChangeKind, FourEyes
from config.console.base import actor_of
from config.console.uploads import Upload, UploadsAdmin
from config.models import TIME_COLUMNS
from endpoints import imports
from endpoints.admin.actions import PrivateEndpointActions
from endpoints.admin.columns import PrivateEndpointColumns
from endpoints.admin.forms import PrivateEndpointForm
from endpoints.models import PrivateEndpoint
from inference.reports.usage import subjects
from inference.reports.usage.panel import Subject, UsagePanel


@admin.register(PrivateEndpoint)
class PrivateEndpointAdmin(
    UsagePanel, ReviewedEndpoints, PrivateEndpointColumns, PrivateEndpointActions, UploadsAdmin
):
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
    linked_lookups = (*UploadsAdmin.linked_lookups, "drifted_at__isnull")
    search_fields = ("model__name", "model__slug", "provider_name", "upstream_model_id")
    uuid_search_fields = ("id", "organization_id")
    ordering = ("-created_at", "-id")
    autocomplete_fields = ("organization", "model", "provider")
    empty_hint = (
        "Add an endpoint or import a file. Then open the endpoint, validate it and activate it."
    )
    upload_kinds = (ChangeKind.PRICES,)
    form_guard = FourEyes((ChangeKind.PRICES,), fields=RATES, guards_new_rows=True)
    upload_form = OrganizationUploadForm
    upload_help = (
        'A file in JSON Lines: each line is a create request without "activate". A new endpoint '
        "becomes a draft, which you then validate and activate. A line may name an endpoint that "
        "was ever activated only if it changes nothing."
    )
    export_form = OrganizationExportForm
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

    def subject_of(self, obj: PrivateEndpoint) -> Subject:
        return subjects.of_private_endpoint(obj)

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

    def load(self, upload: Upload, *, by: str, dry_run: bool, on_row: RowListener | None) -> Report:
        assert upload.organization_id is not None
        lines = read_lines(io.BytesIO(upload.content))
        return imports.apply(upload.organization_id, lines, by=by, dry_run=dry_run, on_row=on_row)

    def export(self, given: dict[str, Any]) -> tuple[str, Iterable[bytes]]:
        return "private-endpoints.jsonl", imports.export(given["organization"].pk)
