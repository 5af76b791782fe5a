"""The operator's page for generations, which nobody writes by hand."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html

from accounts.models import ApiKey, Organization
from billing import ledger
from billing.models import Transfer
from catalog.pricing import NANO, Usage, prompt_parts
from config.console.actions import Message, transition
from config.console.base import BoundedPaginator, ReadOnlyAdmin, StatusFilter, actor_of
from config.console.formatting import dollars, label_renderer, nano_dollars, render_table
from config.console.forms import ConsoleForm, NoteField
from config.console.unfold import Dialog, display
from endusers.models import EndUser
from inference.models import Feedback, Generation, Journal
from inference.reports.hours import first_id

_STATES: Final = {
    "pending": "info",
    "completed": "success",
    "failed": "danger",
    "cancelled": "warning",
}
_SINCE: Final = {
    "hour": ("The last hour", timedelta(hours=1)),
    "day": ("The last 24 hours", timedelta(days=1)),
    "week": ("The last 7 days", timedelta(days=7)),
}
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LABEL: Final = re.compile(r"[sm]k-cw-\S+…\S+")
# A moment as people type it, and how long what they mean by it lasts.
_MOMENTS: Final = (
    ("%Y-%m-%d", timedelta(days=1)),
    ("%Y-%m-%d %H", timedelta(hours=1)),
    ("%Y-%m-%d %H:%M", timedelta(minutes=1)),
    ("%Y-%m-%d %H:%M:%S", timedelta(seconds=1)),
)


class SinceFilter(admin.SimpleListFilter):
    """Bounds the list by the time in the ids, which is a range of the primary key."""

    title = "time"
    parameter_name = "since"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, text) for name, (text, _) in _SINCE.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        found = _SINCE.get(self.value() or "")
        if found is None:
            return queryset
        return queryset.filter(id__gte=first_id(timezone.now() - found[1]))


class RefundDialog(Dialog):
    """Asks why."""

    note = NoteField(help_text="Why; the ledger keeps it.")


class GenerationForm(ConsoleForm):
    """How the page names what its columns abbreviate; nothing of it is ever sent."""

    class Meta:
        labels = {
            "id": "ID",
            "request_id": "Request ID",
            "api_key": "API key",
            "session_id": "Session ID",
            "http_referer": "HTTP referer",
            "provider_name": "Provider",
            "is_byok": "Own credential",
            "upstream_id": "Upstream ID",
            "is_estimated": "Estimated",
            "latency_ms": "Latency, ms",
            "duration_ms": "Duration, ms",
        }
        help_texts = {"is_estimated": "Counted here, for want of a report."}


class GenerationStatusFilter(StatusFilter):
    statuses = Generation.Status

    def narrow_to_pending(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        return rows.filter(pk__in=Journal.objects.values("pk"))


@admin.register(Generation)
class GenerationAdmin(ReadOnlyAdmin):
    """What was asked, where it went and what it cost; newest first, by the time in their ids."""

    form = GenerationForm
    list_display = (
        "created_at", "id", "state", "organization", "model", "provider_name", "tokens", "cost",
        "latency",
    )  # fmt: skip
    list_display_links = ("created_at", "id")
    list_select_related = ("organization",)
    list_filter = (SinceFilter, GenerationStatusFilter, "is_byok", "streamed")
    linked_lookups = (*ReadOnlyAdmin.linked_lookups, "model__exact", "end_user__exact")
    search_fields = ("id__startswith",)
    search_help_text = (
        "The beginning of a generation's id; the label, hash or id of a key; an end user; the id, "
        "slug or name of an organization; or a time in UTC such as 2026-01-31 14:05."
    )
    paginator = BoundedPaginator
    # The table grows without end, and only the primary key is in the order of time.
    ordering = ("-id",)
    sortable_by = ()
    actions_detail = ("refund",)
    empty_hint = "Generations appear as soon as a key is used: POST /api/v1/chat/completions."
    fieldsets = (
        (None, {"fields": (("id", "state"), ("operation", "streamed"), ("model", "request_id"))}),
        (
            "Caller",
            {
                "fields": (
                    ("organization", "workspace"),
                    ("api_key", "member"),
                    ("end_user", "session_id"),
                    ("region", "http_referer"),
                    ("app_title", "user_agent"),
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
        ("Cost", {"fields": (("cost", "upstream_cost", "is_estimated"), "breakdown", "money")}),
        (
            "Result",
            {
                "fields": (
                    ("finish_reason", "native_finish_reason", "error_type"),
                    ("latency_ms", "duration_ms"),
                    "created_at",
                )
            },
        ),
    )
    readonly_fields = ("state", "cost", "upstream_cost", "attempts_table", "breakdown", "money")

    readonly_preprocess_fields = {"state": label_renderer(_STATES)}

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
        return nano_dollars(generation.cost_nano)

    @display(description="Upstream cost")
    def upstream_cost(self, generation: Generation) -> str:
        return nano_dollars(generation.upstream_cost_nano)

    @display(description="First event")
    def latency(self, generation: Generation) -> str:
        return "" if generation.latency_ms is None else f"{generation.latency_ms} ms"

    @display(description="Attempts")
    def attempts_table(self, generation: Generation) -> str:
        rows = [
            (
                number,
                attempt["provider"],
                "own credential" if attempt["is_byok"] else "credits",
                attempt["status"],
                attempt.get("error_type", "served it"),
                f"{attempt['latency_ms']} ms",
            )
            for number, attempt in enumerate(generation.attempts, 1)
        ]
        headers = ("", "Provider", "Paid by", "Status", "Reason", "Took")
        return render_table(headers, rows, empty="No upstream was tried, or it is under way.")

    @display(description="By kind")
    def breakdown(self, generation: Generation) -> str:
        if generation.prompt_tokens is None and generation.completion_tokens is None:
            return "Nothing was used."
        price = generation.price.price
        usage = Usage(
            prompt=generation.prompt_tokens or 0,
            completion=generation.completion_tokens or 0,
            cached=generation.cached_tokens or 0,
            cache_write=generation.cache_write_tokens or 0,
        )
        names = ("Prompt", "Prompt, read from cache", "Prompt, written to cache")
        kinds: list[tuple[str, int, Decimal]] = [
            *((name, *part) for name, part in zip(names, prompt_parts(price, usage), strict=True)),
            (_completion(generation), usage.completion, price.completion),
            ("Request", 1, price.request),
        ]
        rows = [
            (kind, f"{count:,}", dollars(rate), dollars(rate * count))
            for kind, count, rate in kinds
            if count and (rate or kind != "Request")
        ]
        parts = sum((rate * count for _, count, rate in kinds), Decimal(0))
        rest = generation.upstream_cost_nano - parts * NANO
        if abs(rest) >= 1:
            kind = "Images" if rest > 0 else "Waived"
            rows.append((kind, "", "", nano_dollars(round(rest))))
        return render_table(("Kind", "Count", "Rate", "Cost"), rows)

    @display(description="In the ledger")
    def money(self, generation: Generation) -> str:
        rows = [
            (
                Transfer.Kind(transfer.kind).label,
                transfer.status,
                nano_dollars(transfer.amount_nano),
                nano_dollars(transfer.posted_nano or 0),
                transfer.actor,
                transfer.note,
            )
            for transfer in Transfer.objects.filter(reference=generation.pk).order_by("id")
        ]
        headers = ("Transfer", "Status", "At most", "Moved", "By", "Note")
        hold = nano_dollars(generation.hold_nano)
        own = nano_dollars(generation.upstream_hold_nano)
        return format_html(
            '<p class="mb-2">Held: {} of credits, {} of own credentials.</p>{}',
            hold,
            own,
            render_table(headers, rows, empty="No credits moved."),
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request)
        match = request.resolver_match
        if match is None or str(match.url_name).endswith("_changelist"):
            return rows
        # The page names them all.
        return rows.select_related(
            "organization", "workspace__organization", "api_key", "member", "price", "attestation",
            "private_endpoint__model", "model_endpoint__model", "model_endpoint__provider",
        )  # fmt: skip

    def get_ordering(self, request: HttpRequest) -> Any:
        """Orders what is of one organization or key as the indexes of these have it."""
        narrowed = any(name.startswith(("organization", "api_key")) for name in request.GET)
        return ("-created_at",) if narrowed else self.ordering

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Finds by what the term looks like, so that each search is one range of one index."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.startswith("gen-"):
            return queryset.filter(id__startswith=term), False
        moment = _moment(term)
        if moment is not None:
            began_at, lasts = moment
            # In seconds: the last day of the calendar has an end that no date has.
            begin = int(began_at.timestamp())
            end = begin + int(lasts.total_seconds())
            return queryset.filter(id__gte=f"gen-{begin}-", id__lt=f"gen-{end}-"), False
        return _narrowed(queryset, term), False

    def has_refund_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("billing.add_transfer")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        """Offers to refund what was paid and not refunded; the ledger decides once more."""
        kinds = set(
            Transfer.objects.filter(
                reference=str(object_id), status=Transfer.Status.POSTED
            ).values_list("kind", flat=True)
        )
        if Transfer.Kind.REFUND in kinds or not kinds & {Transfer.Kind.USAGE, Transfer.Kind.EXCESS}:
            return []
        return super().get_actions_detail(request, object_id)  # type: ignore[misc]

    @transition(
        description="Refund",
        question="The organization gets back all that its credits paid for this generation. "
        "Budgets go on counting it.",
        submit="Refund",
        permission="refund",
        icon="undo",
        form=RefundDialog,
    )
    def refund(self, request: HttpRequest, generation: Generation, form: Any) -> Message:
        transfer = ledger.refund(
            generation.pk, actor=actor_of(request), note=form.cleaned_data["note"]
        )
        return messages.SUCCESS, f"{nano_dollars(transfer.amount_nano)} refunded."


def _narrowed(queryset: QuerySet[Any], term: str) -> QuerySet[Any]:
    """Returns the generations of the key, organization or end user that a term names."""
    try:
        wanted = UUID(term)
    except ValueError:
        wanted = None
    if wanted is not None:
        if ApiKey.objects.filter(pk=wanted).exists():
            return _in_order(queryset.filter(api_key_id=wanted))
        known = EndUser.objects.filter(pk=wanted).first()
        if known is not None:
            return _in_order(
                queryset.filter(organization_id=known.organization_id, end_user=known.user)
            )
        return _in_order(queryset.filter(organization_id=wanted))
    if _DIGEST.fullmatch(term):
        return _in_order(queryset.filter(api_key__in=_ids(ApiKey.objects.filter(digest=term))))
    if _LABEL.fullmatch(term):
        return _in_order(queryset.filter(api_key__in=_ids(ApiKey.objects.filter(label=term))))
    organizations = Organization.objects.filter(slug=term) | Organization.objects.filter(name=term)
    ids = _ids(organizations)
    if ids:
        return _in_order(queryset.filter(organization__in=ids))
    return _in_order(queryset.filter(end_user=term))


def _ids(rows: QuerySet[Any]) -> list[UUID]:
    return list(rows.values_list("pk", flat=True)[:100])


def _in_order(rows: QuerySet[Any]) -> QuerySet[Any]:
    return rows.order_by("-created_at", "-id")


def _moment(term: str) -> tuple[datetime, timedelta] | None:
    """Reads a time in UTC, and how long the shortest thing that was named lasts."""
    for pattern, lasts in _MOMENTS:
        try:
            return datetime.strptime(term, pattern).replace(tzinfo=UTC), lasts
        except ValueError:
            continue
    return None


def _completion(generation: Generation) -> str:
    reasoning = generation.reasoning_tokens
    return f"Completion, {reasoning:,} of it reasoning" if reasoning else "Completion"


@admin.register(Feedback)
class FeedbackAdmin(ReadOnlyAdmin):
    """What callers say of generations, newest first."""

    list_display = ("created_at", "category", "generation", "created_by")
    list_filter = ("category",)
    search_fields = ("generation__id__startswith",)
    search_help_text = "The beginning of a generation's id."
    paginator = BoundedPaginator
    ordering = ("-id",)
    sortable_by = ()
    fields = (("category", "generation"), "comment", ("created_by", "created_at"))
