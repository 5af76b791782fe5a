"""The operator's page for generations, which nobody writes by hand."""

from __future__ import annotations

from typing import Final

from django.contrib import admin

from config import console
from config.console import ReadOnlyAdmin, display
from inference.models import Feedback, Generation

_STATES: Final = {
    "pending": "info",
    "completed": "success",
    "failed": "danger",
    "cancelled": "warning",
}


@admin.register(Generation)
class GenerationAdmin(ReadOnlyAdmin):
    """What was asked, where it went and what it cost; newest first, by the time in their ids."""

    list_display = (
        "created_at", "id", "state", "organization", "model", "provider_name", "tokens", "cost",
        "latency",
    )  # fmt: skip
    list_display_links = ("id",)
    list_select_related = ("organization",)
    list_filter = ("status", "is_byok", "streamed")
    search_fields = ("id__startswith",)
    search_help_text = "The beginning of a generation's id, or the id of an organization or key."
    uuid_search_fields = ("organization_id", "api_key_id")
    paginator = console.BoundedPaginator
    # The table grows without end, and only the primary key is in the order of time.
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        (None, {"fields": (("id", "state"), ("operation", "streamed"), ("model", "request_id"))}),
        ("Caller", {"fields": (("organization", "workspace"), ("api_key", "end_user"))}),
        (
            "Route",
            {
                "fields": (
                    ("provider_name", "is_byok"),
                    ("private_endpoint", "model_endpoint"),
                    ("upstream_model", "upstream_id"),
                    "attestation",
                    "attempts",
                )
            },
        ),
        (
            "Usage",
            {
                "fields": (
                    ("prompt_tokens", "completion_tokens"),
                    ("cached_tokens", "reasoning_tokens"),
                    ("cost", "upstream_cost"),
                    ("price", "is_estimated"),
                )
            },
        ),
        (
            "Result",
            {
                "fields": (
                    ("finish_reason", "error_type"),
                    ("latency_ms", "duration_ms"),
                    "created_at",
                )
            },
        ),
    )
    readonly_fields = ("state", "cost", "upstream_cost")

    readonly_preprocess_fields = {"state": console.chips(_STATES)}

    @display(description="Status", label=_STATES)
    def state(self, generation: Generation) -> str:
        return str(generation.status)

    @display(description="Tokens")
    def tokens(self, generation: Generation) -> str:
        if generation.prompt_tokens is None and generation.completion_tokens is None:
            return ""
        return f"{generation.prompt_tokens or 0} + {generation.completion_tokens or 0}"

    @display(description="Cost")
    def cost(self, generation: Generation) -> str:
        return console.nano_dollars(generation.cost_nano)

    @display(description="Upstream cost")
    def upstream_cost(self, generation: Generation) -> str:
        return console.nano_dollars(generation.upstream_cost_nano)

    @display(description="First event")
    def latency(self, generation: Generation) -> str:
        return "" if generation.latency_ms is None else f"{generation.latency_ms} ms"


@admin.register(Feedback)
class FeedbackAdmin(ReadOnlyAdmin):
    """What callers say of generations, newest first."""

    list_display = ("created_at", "category", "generation", "created_by")
    list_filter = ("category",)
    search_fields = ("generation_id__startswith",)
    search_help_text = "The beginning of a generation's id."
    paginator = console.BoundedPaginator
    ordering = ("-id",)
    sortable_by = ()
    fields = (("category", "generation"), "comment", ("created_by", "created_at"))
