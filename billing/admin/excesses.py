"""The page of excesses, and the column by which pages of endpoints point to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from billing import reviews
from billing.models import Excess
from config.audit.context import actor_of
from config.console.actions import Message, bulk_action, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer, nano_dollars
from config.console.forms import RECORD, NoteField, part
from config.console.lists.filters import make_filter
from config.console.unfold import Dialog, column, display

_DECIDE: Final = "billing.change_excess"

# The claims of a tenant's own server cost nothing without a fee, and there may be any number.
AmountFilter = make_filter(
    "excess",
    "amount",
    {
        "some": ("More than $0", lambda rows: rows.filter(amount_nano__gt=0)),
        "none": ("$0", lambda rows: rows.filter(amount_nano=0)),
    },
)
_STATES: Final = {"under review": "warning", "charged": "success", "written off": "info"}


class ReviewDialog(Dialog):
    """Asks for the reason of a decision."""

    note = NoteField(help_text="The reason. The ledger stores it.")


@admin.register(Excess)
class ExcessAdmin(ConsoleAdmin):
    """Lists what upstreams claimed beyond what was allowed, latest first; operators decide here."""

    is_read_only = True
    dialog_amount = "amount_nano"
    list_display = (
        "created_at", "state", "organization", "provider_name", "model", "amount", "claimed",
        "allowed",
    )  # fmt: skip
    list_select_related = ("organization",)
    list_filter = ("status", AmountFilter)
    linked_lookups = (*ConsoleAdmin.linked_lookups, "endpoint_id__exact")
    search_fields = ("reference__exact",)
    search_help_text = "The ID of a generation, of an endpoint or of an organization."
    uuid_search_fields = ("id", "organization_id", "endpoint_id")
    ordering = ("-created_at",)
    sortable_by = ()
    empty_hint = (
        "When an upstream claims more tokens than a request allowed, the rest of its claim waits "
        "here. Nobody is charged for it before an operator decides."
    )
    actions = ("charge_selected", "write_off_selected")
    actions_detail = ("charge", "write_off")
    fieldsets = (
        part(None, ("state", "organization"), ("amount", "upstream"), "generation"),
        part("Claim", ("claimed", "allowed"), ("provider_name", "model"), "endpoint"),
        part("Decision", ("decided_by", "decided_at"), "note"),
        RECORD,
    )
    readonly_preprocess_fields = {"state": label_renderer(_STATES)}

    state = column("Status", lambda excess: str(Excess.Status(excess.status).label), label=_STATES)
    amount = column("Excess", lambda excess: nano_dollars(excess.amount_nano))
    upstream = column("At the upstream's price", lambda excess: nano_dollars(excess.upstream_nano))

    @display(description="Claimed tokens")
    def claimed(self, excess: Excess) -> str:
        return f"{excess.claimed_prompt_tokens:,} + {excess.claimed_completion_tokens:,}"

    @display(description="Allowed tokens")
    def allowed(self, excess: Excess) -> str:
        return f"{excess.allowed_prompt_tokens:,} + {excess.allowed_completion_tokens:,}"

    @display(description="Generation")
    def generation(self, excess: Excess) -> str:
        url = reverse("admin:inference_generation_change", args=(excess.reference,))
        return format_html('<a class="text-primary-600" href="{}">{}</a>', url, excess.reference)

    @display(description="Endpoint ID")
    def endpoint(self, excess: Excess) -> str:
        return format_html(
            '{} <a class="text-primary-600" href="{}">(all of its reviews)</a>',
            excess.endpoint_id,
            _url_of(excess.endpoint_id),
        )

    def offers_action(self, request: HttpRequest, obj: Excess, name: str) -> bool:
        return obj.status == Excess.Status.UNDER_REVIEW

    @transition(
        "Charge", submit="Charge the excess", permission=_DECIDE, icon="payments", form=ReviewDialog
    )
    def charge(self, request: HttpRequest, excess: Excess, form: Any) -> Message:
        """The organization pays the whole excess from its available credits. It is refused if they
        do not suffice.
        """
        reviews.charge(excess, by=actor_of(request), note=form.cleaned_data["note"])
        amount = nano_dollars(excess.amount_nano)
        return messages.SUCCESS, f"{amount} charged to {excess.organization}."

    @transition(
        "Write off",
        submit="Write the excess off",
        permission=_DECIDE,
        icon="block",
        danger=True,
        form=ReviewDialog,
    )
    def write_off(self, request: HttpRequest, excess: Excess, form: Any) -> Message:
        """The organization pays nothing for the excess. This cannot be undone."""
        reviews.write_off(excess, by=actor_of(request), note=form.cleaned_data["note"])
        return messages.SUCCESS, f"{nano_dollars(excess.amount_nano)} written off."

    @bulk_action("Charge the selected excesses", permission=_DECIDE)
    def charge_selected(self, request: HttpRequest, excess: Excess) -> None:
        """Each organization pays its whole excess from its available credits. An excess that they
        do not cover is refused.
        """
        reviews.charge(excess, by=actor_of(request))

    @bulk_action("Write off the selected excesses", permission=_DECIDE)
    def write_off_selected(self, request: HttpRequest, excess: Excess) -> None:
        """Their organizations pay nothing for them. This cannot be undone."""
        reviews.write_off(excess, by=actor_of(request))


def _url_of(endpoint_id: UUID) -> str:
    return f"{reverse('admin:billing_excess_changelist')}?endpoint_id__exact={endpoint_id}"


def _has_reviews(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Narrows endpoints to those with claims that wait for an operator."""
    return rows.filter(pk__in=Excess.objects.under_review().values("endpoint_id"))


UnderReviewFilter = make_filter("claims under review", "reviews", {"yes": ("Some", _has_reviews)})


def count_reviews(rows: Iterable[Any]) -> None:
    """Stores on endpoints how many of their claims wait for an operator, by one query."""
    found = {row.pk: row for row in rows}
    waiting = Excess.objects.under_review().filter(endpoint_id__in=list(found)).order_by()
    counts = dict(waiting.values_list("endpoint_id").annotate(count=Count("pk")))
    for key, row in found.items():
        row.review_count = counts.get(key, 0)


@display(description="Reviews")
def reviews_of(page: Any, endpoint: Any) -> str:
    """Links to the claims of an endpoint that wait for an operator."""
    if endpoint.pk is None:
        return ""
    if not hasattr(endpoint, "review_count"):
        count_reviews([endpoint])
    if not (count := endpoint.review_count):
        return ""
    url = f"{_url_of(endpoint.pk)}&status__exact={Excess.Status.UNDER_REVIEW}"
    return format_html('<a class="text-primary-600" href="{}">{}</a>', url, f"{count:,}")
