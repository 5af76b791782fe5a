"""The pages of the ledger: accounts, transfers and grant requests."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from billing import grants
from billing.models import Account, GrantRequest, Transfer
from config.audit.context import actor_of
from config.console.actions import Message, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer, nano_dollars
from config.console.forms import part
from config.console.lists.filters import make_filter
from config.console.unfold import column, display
from inference.models import Journal

_TRANSFERS: Final = {"pending": "info", "posted": "success", "voided": "warning"}
_GRANTS: Final = {"requested": "info", "approved": "success", "declined": "warning"}


@admin.register(Account)
class AccountAdmin(ConsoleAdmin):
    """Lists the accounts of organizations by kind; only the ledger writes them."""

    is_read_only = True
    list_display = ("organization", "kind", "balance", "available", "held", "debits", "credits")
    list_display_links = ("organization", "kind")
    list_select_related = ("organization",)
    list_filter = ("kind",)
    search_fields = ("organization__name",)
    uuid_search_fields = ("organization_id",)
    ordering = ("id",)
    sortable_by = ()
    fieldsets = (
        part(None, ("organization", "kind"), ("balance", "available", "held")),
        part("Posted", ("debits", "credits")),
    )

    balance = column("Balance", lambda account: nano_dollars(account.balance))

    @display(description="Available")
    def available(self, account: Account) -> str:
        is_credits = account.kind == Account.Kind.CREDITS
        return nano_dollars(account.available) if is_credits else ""

    held = column("Held", lambda account: nano_dollars(account.pending_debits))
    debits = column("Debits", lambda account: nano_dollars(account.posted_debits))
    credits = column("Credits", lambda account: nano_dollars(account.posted_credits))


def _narrow_to_status(status: str, rows: QuerySet[Any]) -> QuerySet[Any]:
    if status == Transfer.Status.PENDING:
        # No index has the status. Each pending transfer is the hold of a running generation.
        rows = rows.filter(reference__in=Journal.objects.values("pk"))
    return rows.filter(status=status)


TransferStatusFilter = make_filter(
    "status",
    "status__exact",
    {str(each): (str(each.label), partial(_narrow_to_status, each)) for each in Transfer.Status},
)


@admin.register(Transfer)
class TransferAdmin(ConsoleAdmin):
    """Lists the transfers, posted, pending and voided, latest first."""

    is_read_only = True
    list_display = (
        "created_at", "id", "kind", "state", "organization", "amount", "posted", "reference",
        "actor",
    )  # fmt: skip
    list_display_links = ("id",)
    list_select_related = ("organization",)
    list_filter = ("kind", TransferStatusFilter)
    # An index on the status would be written at the end of each transfer.
    walked_lookups = frozenset({"status__exact"})
    search_fields = ("reference__exact",)
    search_help_text = "A reference, such as the ID of a generation, or the ID of an organization."
    uuid_search_fields = ("organization_id",)
    # The table grows without limit, and only the index of the primary key is in order of time.
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        part(None, ("id", "kind", "state"), ("amount", "posted"), "organization"),
        part("Accounts", ("debit", "credit")),
        part("Reason", ("reference", "actor"), "note", ("created_at", "ended_at")),
    )
    readonly_preprocess_fields = {"state": label_renderer(_TRANSFERS)}

    state = column("Status", lambda transfer: str(transfer.status), label=_TRANSFERS)
    amount = column("Amount", lambda transfer: nano_dollars(transfer.amount_nano))

    @display(description="Posted")
    def posted(self, transfer: Transfer) -> str:
        return "" if transfer.posted_nano is None else nano_dollars(transfer.posted_nano)


@admin.register(GrantRequest)
class GrantRequestAdmin(ConsoleAdmin):
    """Lists the grants above the limit, latest first; another operator must approve each."""

    is_read_only = True
    dialog_amount = "amount_nano"
    list_display = ("created_at", "state", "organization", "amount", "requested_by", "decided_by")
    list_select_related = ("organization",)
    list_filter = ("status",)
    search_fields = ("organization__name",)
    uuid_search_fields = ("id", "organization_id")
    empty_hint = (
        "A grant above GRANT_APPROVAL_LIMIT waits here for approval. Grant credits on the page of "
        "an organization."
    )
    ordering = ("-created_at",)
    sortable_by = ()
    actions_detail = ("approve", "decline")
    fieldsets = (
        part(None, ("state", "amount"), "organization", "note"),
        part("Operators", ("requested_by", "created_at"), ("decided_by", "decided_at")),
        part("Record", "id", folded=True),
    )
    readonly_preprocess_fields = {"state": label_renderer(_GRANTS)}

    state = column("Status", lambda grant_request: str(grant_request.status), label=_GRANTS)
    amount = column("Amount", lambda grant_request: nano_dollars(grant_request.amount_nano))

    def has_decide_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm(GrantRequest.DECIDE_PERMISSION)

    def offers_action(self, request: HttpRequest, obj: GrantRequest, name: str) -> bool:
        return obj.status == GrantRequest.Status.REQUESTED

    @transition("Approve", submit="Grant the credits", permission="decide", icon="add_card")
    def approve(self, request: HttpRequest, grant_request: GrantRequest, form: Any) -> Message:
        """The organization can spend the credits at once. This cannot be undone."""
        grants.approve(grant_request, by=actor_of(request))
        amount = nano_dollars(grant_request.amount_nano)
        return messages.SUCCESS, f"{amount} granted to {grant_request.organization}."

    @transition(
        "Decline", submit="Decline the grant", permission="decide", icon="block", danger=True
    )
    def decline(self, request: HttpRequest, grant_request: GrantRequest, form: Any) -> Message:
        """Nothing is granted. This cannot be undone, but the grant can be requested again."""
        grant_request.decline(by=actor_of(request))
        return messages.SUCCESS, "The grant is declined."
