"""The pages of generations and of feedback on them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts.admin.forms import nano_of
from billing import ledger
from billing.models import Transfer
from config.audit.context import actor_of
from config.clocks.clock import clock
from config.console.actions import Message, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import nano_dollars
from config.console.forms import ConsoleForm, NoteField, part
from config.console.lists.filters import (
    FilterForm,
    FormFilter,
    NumberFilterField,
    OptionField,
    TextField,
    UtcField,
)
from config.console.unfold import Dialog, PickerFilter, column
from inference.admin.columns import GenerationColumns
from inference.admin.invoices import reconcile_invoice
from inference.admin.live import answer_rows, show_live
from inference.admin.search import find_generations
from inference.admin.texts import delete_text, read_text
from inference.admin.watching import show_errors, show_health
from inference.ids import first_id, last_id
from inference.models import Feedback, Generation, Journal

_SINCE: Final = {
    "hour": ("The last hour", timedelta(hours=1)),
    "day": ("The last 24 hours", timedelta(days=1)),
    "week": ("The last 7 days", timedelta(days=7)),
}
_YES_OR_NO: Final = (("1", "Yes"), ("0", "No"))
_YES_OR_NO_FIELDS: Final = {"is_byok__exact", "streamed__exact"}
_COSTS: Final = {"cost_nano__gte", "cost_nano__lte"}
_RANGES: Final = (
    ("created_at__gte", "created_at__lt"),
    ("cost_nano__gte", "cost_nano__lte"),
    ("latency_ms__gte", "latency_ms__lte"),
)
# Only times, organizations, keys and end users have an index.
_WALKED: Final = frozenset(
    {
        "status__exact", "error_type__exact", "model__exact", "provider_name__exact",
        "cost_nano__gte", "cost_nano__lte", "latency_ms__gte", "latency_ms__lte",
        "is_byok__exact", "streamed__exact", "private_endpoint__id__exact",
        "model_endpoint__id__exact", "workspace__id__exact",
    }
)  # fmt: skip


class GenerationFilterForm(FilterForm):
    """Asks for the time, the route, the result and the numbers of generations.

    The names are those of links on other pages.
    """

    since = OptionField([(name, text) for name, (text, _) in _SINCE.items()], label="Time")
    created_at__gte = UtcField(label="From, UTC")
    created_at__lt = UtcField(label="To, UTC")
    status__exact = OptionField(Generation.Status.choices, label="Status")
    error_type__exact = TextField(label="Error type", help_text="Such as provider_unavailable.")
    model__exact = TextField(label="Model", help_text="The slug.")
    provider_name__exact = TextField(label="Provider", help_text="The name.")
    end_user__exact = TextField(label="End user")
    cost_nano__gte = NumberFilterField(label="Cost in USD, from", decimal_places=9)
    cost_nano__lte = NumberFilterField(label="Cost in USD, to", decimal_places=9)
    latency_ms__gte = NumberFilterField(label="First event in ms, from")
    latency_ms__lte = NumberFilterField(label="First event in ms, to")
    is_byok__exact = OptionField(_YES_OR_NO, label="BYOK")
    streamed__exact = OptionField(_YES_OR_NO, label="Streamed")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for low, high in _RANGES:
            least, most = cleaned.get(low), cleaned.get(high)
            if least is not None and most is not None and least > most:
                self.add_error(high, "This is less than the beginning of the range.")
        return cleaned

    def narrow(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        given = {
            name: value for name, value in self.cleaned_data.items() if value not in (None, "")
        }
        if given.get("status__exact") == Generation.Status.PENDING:
            # No index has the status; the pending ones have journals.
            rows = rows.filter(pk__in=Journal.objects.values("pk"))
        for name in _YES_OR_NO_FIELDS & given.keys():
            given[name] = given[name] == "1"
        for name in _COSTS & given.keys():
            given[name] = nano_of(given[name])
        return _narrow_time(rows, given).filter(**given)


def _narrow_time(rows: QuerySet[Any], given: dict[str, Any]) -> QuerySet[Any]:
    """Narrows by the time in the ID, which names the partitions, beside the stamp."""
    since = given.pop("since", None)
    if since is not None:
        moment = clock.now() - _SINCE[since][1]
        given["created_at__gte"] = max(moment, given.get("created_at__gte", moment))
    if "created_at__gte" in given:
        rows = rows.filter(id__gte=first_id(given["created_at__gte"]))
    if "created_at__lt" in given:
        rows = rows.filter(id__lt=last_id(given["created_at__lt"]))
    return rows


class GenerationFilter(FormFilter):
    form_class = GenerationFilterForm


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
    walked_lookups = _WALKED
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
        part(
            None,
            ("state", "error_type"),
            ("id", "operation", "streamed"),
            ("model", "requested_model"),
            ("request_id", "cached_from", "retry_of"),
        ),
        part(
            "Caller",
            ("organization", "workspace"),
            ("api_key", "member"),
            ("end_user", "session_id"),
            ("region", "http_referer"),
            ("app_title", "user_agent"),
            ("preset_id", "trace"),
        ),
        part(
            "Route",
            ("provider_name", "is_byok"),
            ("private_endpoint", "model_endpoint"),
            ("upstream_model", "upstream_id"),
            "attestation",
            "attempts_table",
        ),
        part("Cost", ("cost", "upstream_cost"), "is_estimated", "breakdown", "money"),
        part(
            "Result",
            ("finish_reason", "native_finish_reason"),
            ("latency_ms", "duration_ms"),
            "created_at",
        ),
    )

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
        "Refund", submit="Refund", permission="billing.add_transfer", icon="undo", form=RefundDialog
    )
    def refund(self, request: HttpRequest, generation: Generation, form: Any) -> Message:
        """The organization gets back all credits that it paid for this generation. Its budgets
        still count the generation.
        """
        transfer = ledger.refund(
            generation.pk, actor=actor_of(request), note=form.cleaned_data["note"]
        )
        return messages.SUCCESS, f"{nano_dollars(transfer.amount_nano)} refunded."


@admin.register(Feedback)
class FeedbackAdmin(ConsoleAdmin):
    """Lists the callers' feedback on generations, newest first.

    It shows ids: a generation may have been archived.
    """

    is_read_only = True
    list_display = ("created_at", "category", "about", "created_by")
    list_filter = ("category",)
    search_fields = ("generation__id__startswith",)
    search_help_text = "The beginning of a generation's ID."
    ordering = ("-id",)
    sortable_by = ()
    fields = (("category", "about"), "comment", ("created_by", "created_at"))
    readonly_fields = ("category", "about", "comment", "created_by", "created_at")

    about = column("Generation", lambda feedback: feedback.generation_id)
