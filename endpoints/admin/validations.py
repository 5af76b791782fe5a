"""The page of live validations."""

from __future__ import annotations

from typing import Final

from django.contrib import admin

from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer, nano_dollars
from config.console.unfold import display
from endpoints.history import render_checks, render_operations, render_proofs
from endpoints.models import Validation

OUTCOMES: Final = {
    "passed": "success",
    "failed": "danger",
    "unreachable": "danger",
    "timed out": "warning",
    "broken": "danger",
}


@admin.register(Validation)
class ValidationAdmin(ConsoleAdmin):
    """Lists the live validations of all endpoints, latest first."""

    is_read_only = True
    list_display = (
        "created_at", "result", "purpose", "endpoint_name", "organization", "cost", "duration",
    )  # fmt: skip
    list_select_related = ("endpoint__model", "endpoint__organization")
    list_filter = ("outcome", "purpose")
    walked_lookups = frozenset({"outcome__exact", "outcome__in", "purpose__exact"})
    search_fields = ("endpoint__upstream_model_id",)
    uuid_search_fields = ("id", "endpoint_id")
    ordering = ("-created_at", "-id")
    sortable_by = ()
    fieldsets = (
        (
            None,
            {"fields": ("endpoint", ("result", "purpose", "validated_by"), ("cost", "duration"))},
        ),
        ("Credential", {"fields": ("workspace", ("credential", "credential_version"), "host")}),
        ("Checks", {"fields": ("checks_table",)}),
        ("Operations and parameters", {"fields": ("operations", "proofs")}),
        ("Evidence", {"fields": ("evidence", "changes")}),
        (
            "Record",
            {
                "classes": ["collapse"],
                "fields": ("id", "configuration", ("created_at", "updated_at")),
            },
        ),
    )
    readonly_fields = (
        "result", "cost", "duration", "checks_table", "operations", "proofs", "id", "created_at",
        "updated_at",
    )  # fmt: skip
    readonly_preprocess_fields = {"result": label_renderer(OUTCOMES)}

    @display(description="Endpoint")
    def endpoint_name(self, validation: Validation) -> str:
        return str(validation.endpoint)

    @display(description="Organization")
    def organization(self, validation: Validation) -> str:
        return validation.endpoint.organization.name

    @display(description="Outcome", ordering="outcome", label=OUTCOMES)
    def result(self, validation: Validation) -> str:
        return str(Validation.Outcome(validation.outcome).label)

    @display(description="Cost")
    def cost(self, validation: Validation) -> str:
        return nano_dollars(validation.cost_nano)

    @display(description="Duration")
    def duration(self, validation: Validation) -> str:
        return f"{validation.duration_ms} ms"

    @display(description="Checks")
    def checks_table(self, validation: Validation) -> str:
        return render_checks(validation)

    @display(description="Operations")
    def operations(self, validation: Validation) -> str:
        return render_operations(validation)

    @display(description="What the answers have shown")
    def proofs(self, validation: Validation) -> str:
        return render_proofs(validation)
