"""The pages of top-ups and of deposits, the payments that arrived."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import mark_safe

from accounts.models import Organization
from billing.admin.cells import abbreviate, breakable, link_to_explorer
from billing.models import Deposit, TopUp, chain_name
from billing.topups import matching
from config.audit.context import actor_of
from config.clocks.writing import write_time
from config.console.actions import Message, bulk_action, transition
from config.console.base import ConsoleAdmin, ReadOnlyInline
from config.console.formatting import label_renderer, nano_dollars
from config.console.forms import NoteField, part
from config.console.unfold import Dialog, TabularInline, TextWidget, column, display

_STATES: Final = {
    "open": "info", "seen": "info", "confirmed": "success", "expired": "warning",
    "review": "danger",
}  # fmt: skip
_FINDINGS: Final = {
    "received": "info", "credited": "success", "unmatched": "danger", "under": "danger",
    "over": "danger", "late": "danger", "dismissed": "warning",
}  # fmt: skip


class PaymentMixin:
    """Formats the columns that a top-up and a deposit share."""

    amount = column("Amount", lambda row: row.amount_text)

    @display(description="Chain", ordering="chain_id")
    def chain(self, row: TopUp | Deposit) -> str:
        return f"{chain_name(row.chain_id)} ({row.chain_id})"

    value = column("Value", lambda row: nano_dollars(row.amount_nano))
    paid_from = column("From", lambda row: link_to_explorer(row.chain_id, "address", row.sender))
    paid_to = column("To", lambda row: link_to_explorer(row.chain_id, "address", row.recipient))
    paid_in = column("Token", lambda row: link_to_explorer(row.chain_id, "token", row.token))

    @display(description="Transaction")
    def transaction(self, row: TopUp | Deposit) -> str:
        return link_to_explorer(row.chain_id, "tx", row.tx_hash)

    short_sender = column("From", lambda row: abbreviate(row.sender))
    short_transaction = column("Transaction", lambda row: abbreviate(row.tx_hash))

    @display(description="Block")
    def block(self, row: TopUp | Deposit) -> str:
        return (
            ""
            if row.block_number is None
            else link_to_explorer(row.chain_id, "block", str(row.block_number))
        )


class DepositInline(PaymentMixin, ReadOnlyInline, TabularInline):
    """Lists the deposits for a top-up, including those that differ from it."""

    model = Deposit
    fk_name = "top_up"
    fields = ("state", "amount", "mined_at", "short_transaction")
    readonly_fields = fields
    show_change_link = True

    state = column("Status", lambda deposit: str(deposit.status))


@admin.register(TopUp)
class TopUpAdmin(PaymentMixin, ConsoleAdmin):
    """Lists the top-ups that organizations requested, latest first."""

    is_read_only = True
    list_display = (
        "created_at", "state", "organization", "amount", "chain", "short_sender", "expires_at",
        "confirmed_at",
    )  # fmt: skip
    list_select_related = ("organization",)
    list_filter = ("status", "chain_id")
    search_fields = ("sender__iexact", "tx_hash", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    ordering = ("-created_at",)
    sortable_by = ()
    inlines = (DepositInline,)
    fieldsets = (
        part(None, ("state", "amount", "value"), "organization"),
        part("Payment", "paid_from", "paid_to", "paid_in", ("chain", "units")),
        part(
            "Progress",
            "transaction",
            ("block", "blocks"),
            ("expires_at", "payable_until", "confirmed_at"),
        ),
        part(
            "Record",
            ("created_at", "updated_at"),
            "id",
            ("requested_by", "idempotency_key"),
            "is_reserved",
            folded=True,
        ),
    )
    readonly_preprocess_fields = {"state": label_renderer(_STATES)}

    state = column("Status", lambda top_up: str(top_up.status), label=_STATES)
    blocks = column("Confirmations", lambda top_up: str(top_up.confirmations))


class CreditDialog(Dialog):
    """Asks for the organization that a deposit belongs to."""

    organization = forms.ModelChoiceField(
        queryset=Organization.objects.all(),
        widget=TextWidget(),
        label="Organization ID",
        error_messages={"invalid_choice": "No organization has this ID."},
    )
    note = NoteField(help_text="The reason why it belongs to the organization.")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        deposit = _deposit(self.object_id)
        if deposit is None:
            return
        self.fields["organization"].help_text = _candidates(deposit)
        if deposit.top_up is not None:
            self.fields["organization"].initial = deposit.top_up.organization_id


class DismissDialog(Dialog):
    """Asks for the reason why no organization is credited."""

    note = NoteField(help_text="The reason, for instance that it was paid back.")


def _deposit(object_id: str) -> Deposit | None:
    try:
        deposit: Deposit | None
        deposit = Deposit.objects.select_related("top_up").filter(pk=object_id).first()
    except ValidationError:
        return None
    return deposit


def _candidates(deposit: Deposit) -> str:
    """Lists the top-ups that name this sender or this very amount.

    This proves nothing: anybody can name any sender.
    """
    found = matching.matching_top_ups(deposit) | matching.exact_top_ups(deposit)
    rows = found.select_related("organization").order_by("created_at")
    described = (
        (
            top_up.organization, top_up.organization_id, top_up.amount_text,
            write_time(top_up.created_at), top_up.status,
        )
        for top_up in rows
    )  # fmt: skip
    listed = format_html_join(
        mark_safe("<br>"),
        '<span style="overflow-wrap: anywhere">{} ({}) asked for {} at {}: {}.</span>',
        described,
    )
    return listed or "No top-up names this sender or this amount."


@admin.register(Deposit)
class DepositAdmin(PaymentMixin, ConsoleAdmin):
    """Lists the payments that arrived, latest first; operators resolve deviating ones here."""

    is_read_only = True
    dialog_amount = "amount_nano"
    list_display = (
        "mined_at", "state", "finding_label", "amount", "value", "chain", "short_sender",
        "organization", "short_transaction",
    )  # fmt: skip
    list_select_related = ("organization", "top_up")
    list_filter = ("status", "finding", "chain_id")
    search_fields = ("tx_hash", "sender__iexact", "organization__name")
    uuid_search_fields = ("id", "organization_id", "top_up_id")
    ordering = ("-created_at",)
    sortable_by = ()
    actions = ("dismiss_selected",)
    actions_detail = ("credit", "dismiss")
    fieldsets = (
        part(None, ("state", "finding_label"), ("amount", "value"), ("organization", "top_up")),
        part(
            "Transaction",
            "transaction",
            ("block", "ordinal", "mined_at"),
            "hash_of_block",
            "paid_from",
            "paid_to",
            "paid_in",
            ("chain", "units"),
        ),
        part("Resolution", ("resolved_at", "resolved_by"), "note"),
        part("Record", ("created_at", "updated_at"), "id", folded=True),
    )
    readonly_preprocess_fields = {
        "state": label_renderer(_FINDINGS),
        "finding_label": label_renderer(_FINDINGS),
    }

    state = column("Status", lambda deposit: str(deposit.status), label=_FINDINGS)
    finding_label = column("Finding", lambda deposit: str(deposit.finding), label=_FINDINGS)
    hash_of_block = column("Block hash", lambda deposit: breakable(deposit.block_hash))

    def offers_action(self, request: HttpRequest, obj: Deposit, name: str) -> bool:
        return obj.status in Deposit.REVIEWED

    @transition(
        "Credit",
        submit="Credit the deposit",
        permission="billing.change_deposit",
        icon="add_card",
        form=CreditDialog,
    )
    def credit(self, request: HttpRequest, deposit: Deposit, form: Any) -> Message:
        """The organization receives the whole value as credits. This cannot be undone."""
        organization = form.cleaned_data["organization"]
        matching.credit(
            deposit,
            organization.pk,
            by=actor_of(request),
            note=form.cleaned_data["note"],
        )
        value = nano_dollars(deposit.amount_nano)
        return messages.SUCCESS, f"{value} credited to {organization}."

    @transition(
        "Dismiss",
        submit="Dismiss the deposit",
        permission="billing.change_deposit",
        icon="block",
        danger=True,
        form=DismissDialog,
    )
    def dismiss(self, request: HttpRequest, deposit: Deposit, form: Any) -> Message:
        """No organization is credited, for instance because the payment was paid back. This cannot
        be undone.
        """
        matching.dismiss(deposit, by=actor_of(request), note=form.cleaned_data["note"])
        return messages.SUCCESS, "The deposit is dismissed."

    @bulk_action("Dismiss the selected deposits", permission="billing.change_deposit")
    def dismiss_selected(self, request: HttpRequest, deposit: Deposit) -> None:
        """No organization is credited for them. This cannot be undone."""
        matching.dismiss(deposit, by=actor_of(request), note="dismissed with others")
