"""The page of generations."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from billing import ledger
from billing.models import Transfer
from config.audit.context import actor_of
from config.console.actions import Message, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import nano_dollars
from config.console.forms import ConsoleForm, NoteField
from config.console.unfold import Dialog, PickerFilter
from inference.admin.columns import GenerationColumns
from inference.admin.filters import WALKED, GenerationFilter
from inference.admin.invoices import reconcile_invoice
from inference.admin.live import answer_rows, show_live
from inference.admin.search import find_generations
from inference.admin.texts import delete_text, read_text
from inference.admin.watching import show_errors, show_health
from inference.models import Generation


class RefundDialog(Dialog):
    """Asks for the reason."""

    note = NoteField(help_text="The reason. The ledger stores it.")


class GenerationForm(ConsoleForm):
    """Names the columns of the read-only page; it is never submitted."""

    class Meta:
        labels = {
            "id": "ID",
            "request_id": "Request ID",
            "api_key": "API key",
            "session_id": "Session ID",
            "preset_id": "Preset ID",
            "http_referer": "HTTP referer",
            "provider_name": "Provider",
            "is_byok": "BYOK",
            "upstream_id": "Upstream ID",
            "is_estimated": "Estimated",
            "latency_ms": "Latency, ms",
            "duration_ms": "Duration, ms",
        }
        help_texts = {"is_estimated": "Yes if the upstream reported no usage."}


@admin.register(Generation)
class GenerationAdmin(GenerationColumns, ConsoleAdmin):
    """Lists the generations, newest first by the time in their IDs."""

    is_read_only = True
    dialog_amount = "cost_nano"
    form = GenerationForm
    list_display = (
        "created_at", "id", "state", "organization", "model", "provider_name", "tokens", "cost",
        "latency",
    )  # fmt: skip
    list_display_links = ("created_at", "id")
    list_select_related = ("organization",)
    linked_lookups = (
        *ConsoleAdmin.linked_lookups, "workspace__id__exact", "model_endpoint__id__exact",
    )  # fmt: skip
    list_filter = (
        GenerationFilter,
        ("organization", PickerFilter),
        ("api_key", PickerFilter),
        ("private_endpoint", PickerFilter),
    )
    list_filter_submit = True
    walked_lookups = WALKED
    search_fields = ("id__startswith",)
    search_help_text = (
        "The beginning of a generation's ID; the label, hash or ID of a key; an end user; the ID, "
        "slug or name of an organization; or a time in UTC such as 2026-01-31 14:05."
    )
    # Only the primary key has an index in the order of time, and the table grows without end.
    ordering = ("-id",)
    sortable_by = ()
    views = {
        "live": show_live,
        "live/rows": answer_rows,
        "health": show_health,
        "errors": show_errors,
    }
    actions_list = ("reconcile_invoice",)
    reconcile_invoice = reconcile_invoice
    actions_detail = ("refund", "read_text", "delete_text")
    read_text = read_text
    delete_text = delete_text
    empty_hint = "Send a request to /api/v1/chat/completions with an API key."
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("state", "error_type"),
                    ("id", "operation", "streamed"),
                    ("model", "requested_model"),
                    ("request_id", "cached_from", "retry_of"),
                )
            },
        ),
        (
            "Caller",
            {
                "fields": (
                    ("organization", "workspace"),
                    ("api_key", "member"),
                    ("end_user", "session_id"),
                    ("region", "http_referer"),
                    ("app_title", "user_agent"),
                    ("preset_id", "trace"),
                )
            },
        ),
        (
            "Route",
            {
                "fields": (
                    ("provider_name", "is_byok"),
                    ("private_endpoint", "model_endpoint"),
                    ("upstream_model", "upstream_id"),
                    "attestation",
                    "attempts_table",
                )
            },
        ),
        ("Cost", {"fields": (("cost", "upstream_cost"), "is_estimated", "breakdown", "money")}),
        (
            "Result",
            {
                "fields": (
                    ("finish_reason", "native_finish_reason"),
                    ("latency_ms", "duration_ms"),
                    "created_at",
                )
            },
        ),
    )
    readonly_fields = (
        "state", "requested_model", "cost", "upstream_cost", "attempts_table", "breakdown", "money",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        match = request.resolver_match
        if match is None or str(match.url_name).endswith("_changelist"):
            return rows
        # The detail page shows all of these by name.
        return rows.select_related(
            "organization", "workspace__organization", "api_key", "member", "price", "attestation",
            "private_endpoint__model", "model_endpoint__model", "model_endpoint__provider",
        )  # fmt: skip

    def get_ordering(self, request: HttpRequest) -> Any:
        """Orders by the index of the organization or the key when the list is narrowed to one."""
        is_narrowed = any(
            value and name.startswith(("organization", "api_key"))
            for name, value in request.GET.items()
        )
        return ("-created_at",) if is_narrowed else self.ordering

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Chooses the search by the shape of the term."""
        term = search_term.strip()
        return (find_generations(queryset, term) if term else queryset), False

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        """Offers a refund of a paid generation once; the ledger checks it again under a lock."""
        actions = super().get_actions_detail(request, object_id)
        kinds = set(
            Transfer.objects.filter(
                reference=str(object_id), status=Transfer.Status.POSTED
            ).values_list("kind", flat=True)
        )
        if Transfer.Kind.REFUND in kinds or not kinds & {Transfer.Kind.USAGE, Transfer.Kind.EXCESS}:
            return [each for each in actions if not each.action_name.endswith("_refund")]
        return actions

    @transition(
        description="Refund",
        question="The organization gets back all credits that it paid for this generation. Its "
        "budgets still count the generation.",
        submit="Refund",
        permission="billing.add_transfer",
        icon="undo",
        form=RefundDialog,
    )
    def refund(self, request: HttpRequest, generation: Generation, form: Any) -> Message:
        transfer = ledger.refund(
            generation.pk, actor=actor_of(request), note=form.cleaned_data["note"]
        )
        return messages.SUCCESS, f"{nano_dollars(transfer.amount_nano)} refunded."
