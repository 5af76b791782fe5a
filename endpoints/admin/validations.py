"""The page of live validations."""

from __future__ import annotations

from typing import Final

from django.contrib import admin

from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer, nano_dollars
from config.console.forms import part
from config.console.unfold import column, display
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
        part(None, "endpoint", ("result", "purpose", "validated_by"), ("cost", "duration")),
        part("Credential", "workspace", ("credential", "credential_version"), "host"),
        part("Checks", "checks_table"),
        part("Operations and parameters", "operations", "proofs"),
        part("Evidence", "evidence", "changes"),
        part("Record", "id", "configuration", ("created_at", "updated_at"), folded=True),
    )
    readonly_preprocess_fields = {"result": label_renderer(OUTCOMES)}

    endpoint_name = column("Endpoint", lambda validation: str(validation.endpoint))
    organization = column("Organization", lambda validation: validation.endpoint.organization.name)

    @display(description="Outcome", ordering="outcome", label=OUTCOMES)
    def result(self, validation: Validation) -> str:
        return str(Validation.Outcome(validation.outcome).label)

    cost = column("Cost", lambda validation: nano_dollars(validation.cost_nano))
    duration = column("Duration", lambda validation: f"{validation.duration_ms} ms")
    checks_table = column("Checks", lambda validation: render_checks(validation))
    operations = column("Operations", lambda validation: render_operations(validation))
    proofs = column("What the answers have shown", lambda validation: render_proofs(validation))
