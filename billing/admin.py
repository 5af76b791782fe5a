"""The operator's pages for the ledger, top-ups, deposits and the chains that they are read from."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe

from accounts.models import Organization
from billing import grants, matching
from billing.chain import ChainError, Cursor, Node
from billing.models import (
    Account,
    ChainState,
    Deposit,
    GrantRequest,
    TopUp,
    Transfer,
    chain_name,
)
from config import console
from config.api import CONTROL_CHARACTERS
from config.console import Dialog, ReadOnlyAdmin, display
from config.errors import Unavailable, Unprocessable
from inference.models import Journal

_TRANSFERS: Final = {"pending": "info", "posted": "success", "voided": "warning"}
_STATES: Final = {
    "open": "info", "seen": "info", "confirmed": "success", "expired": "warning",
    "review": "danger",
}  # fmt: skip
_GRANTS: Final = {"requested": "info", "approved": "success", "declined": "warning"}
_FINDINGS: Final = {
    "received": "info", "credited": "success", "unmatched": "danger", "under": "danger",
    "over": "danger", "late": "danger", "dismissed": "warning",
}  # fmt: skip
_CHAIN_STATES: Final = {
    "reading": "success", "starting": "info", "failing": "warning", "halted": "danger",
    "not configured": "warning",
}  # fmt: skip
# Where people look at transactions of the chains that have a name.
_EXPLORERS: Final = {
    1: "https://etherscan.io", 137: "https://polygonscan.com", 8453: "https://basescan.org",
}  # fmt: skip
_RESCAN: Final = 1_000


def _explorer(chain_id: int, kind: str, text: str) -> str:
    """Shows a hash, block or address, linked to the chain's public explorer if it has one."""
    site = _EXPLORERS.get(chain_id)
    if site is None or not text:
        return _wrapped(text)
    return format_html(
        '<a class="underline" href="{}/{}/{}" target="_blank" rel="noopener noreferrer">{}</a>',
        site,
        kind,
        text,
        _wrapped(text),
    )


def _wrapped(text: str) -> str:
    """Lets a long text of digits be broken on a narrow page, and copied whole."""
    parts = ((text[place : place + 8],) for place in range(0, len(text), 8))
    return format_html_join(mark_safe("<wbr>"), "{}", parts)


def _short(text: str) -> str:
    """Returns what tells a hash or an address apart in a list."""
    return f"{text[:6]}…{text[-4:]}" if text else ""


@admin.register(Account)
class AccountAdmin(ReadOnlyAdmin):
    """What each organization has and had, by kind; the ledger alone writes it."""

    list_display = ("organization", "kind", "balance", "available", "held", "debits", "credits")
    list_display_links = ("organization", "kind")
    list_select_related = ("organization",)
    list_filter = ("kind",)
    search_fields = ("organization__name",)
    uuid_search_fields = ("organization_id",)
    paginator = console.BoundedPaginator
    ordering = ("id",)
    sortable_by = ()
    fieldsets = (
        (None, {"fields": (("organization", "kind"), ("balance", "available", "held"))}),
        ("Posted", {"fields": (("debits", "credits"),)}),
    )
    readonly_fields = (
        "organization", "kind", "balance", "available", "held", "debits", "credits",
    )  # fmt: skip

    @display(description="Balance")
    def balance(self, account: Account) -> str:
        return console.nano_dollars(account.balance)

    @display(description="Available")
    def available(self, account: Account) -> str:
        is_purse = account.kind == Account.Kind.CREDITS
        return console.nano_dollars(account.available) if is_purse else ""

    @display(description="Held")
    def held(self, account: Account) -> str:
        return console.nano_dollars(account.pending_debits)

    @display(description="Debits")
    def debits(self, account: Account) -> str:
        return console.nano_dollars(account.posted_debits)

    @display(description="Credits")
    def credits(self, account: Account) -> str:
        return console.nano_dollars(account.posted_credits)


class TransferStatusFilter(admin.SimpleListFilter):
    """The statuses; holds are those of generations under way, of which there are few."""

    title = "status"
    parameter_name = "status__exact"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(str(status), status.label) for status in Transfer.Status]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        status = self.value()
        if status is None:
            return queryset
        if status == Transfer.Status.PENDING:
            queryset = queryset.filter(reference__in=Journal.objects.values("pk"))
        return queryset.filter(status=status)


@admin.register(Transfer)
class TransferAdmin(ReadOnlyAdmin):
    """Every amount that moved or is held, latest first."""

    list_display = (
        "created_at", "id", "kind", "state", "organization", "amount", "posted", "reference",
        "actor",
    )  # fmt: skip
    list_display_links = ("id",)
    list_select_related = ("organization",)
    list_filter = ("kind", TransferStatusFilter)
    search_fields = ("reference__exact",)
    search_help_text = "A reference, such as a generation's id, or the id of an organization."
    uuid_search_fields = ("organization_id",)
    paginator = console.BoundedPaginator
    # The table grows without end, and only the primary key is in the order of time.
    ordering = ("-id",)
    sortable_by = ()
    fieldsets = (
        (None, {"fields": (("id", "kind", "state"), ("amount", "posted"), "organization")}),
        ("Between", {"fields": (("debit", "credit"),)}),
        ("Reason", {"fields": (("reference", "actor"), "note", ("created_at", "ended_at"))}),
    )
    readonly_fields = (
        "id", "kind", "state", "amount", "posted", "organization", "debit", "credit", "reference",
        "actor", "note", "created_at", "ended_at",
    )  # fmt: skip
    readonly_preprocess_fields = {"state": console.chips(_TRANSFERS)}

    @display(description="Status", label=_TRANSFERS)
    def state(self, transfer: Transfer) -> str:
        return str(transfer.status)

    @display(description="At most")
    def amount(self, transfer: Transfer) -> str:
        return console.nano_dollars(transfer.amount_nano)

    @display(description="Moved")
    def posted(self, transfer: Transfer) -> str:
        return "" if transfer.posted_nano is None else console.nano_dollars(transfer.posted_nano)


@admin.register(GrantRequest)
class GrantRequestAdmin(ReadOnlyAdmin):
    """Grants above the limit, latest first; each waits for another operator than who asked."""

    list_display = ("created_at", "state", "organization", "amount", "requested_by", "decided_by")
    list_select_related = ("organization",)
    list_filter = ("status",)
    search_fields = ("organization__name",)
    uuid_search_fields = ("id", "organization_id")
    empty_hint = (
        "Grants above GRANT_APPROVAL_LIMIT wait here. They are asked for on an organization's page."
    )
    ordering = ("-created_at",)
    sortable_by = ()
    actions_detail = ("approve", "decline")
    fieldsets = (
        (None, {"fields": (("state", "amount"), "organization", "note")}),
        ("Who", {"fields": (("requested_by", "created_at"), ("decided_by", "decided_at"))}),
        ("Record", {"classes": ["collapse"], "fields": ("id",)}),
    )
    readonly_fields = (
        "state", "amount", "organization", "note", "requested_by", "created_at", "decided_by",
        "decided_at", "id",
    )  # fmt: skip
    readonly_preprocess_fields = {"state": console.chips(_GRANTS)}

    @display(description="Status", label=_GRANTS)
    def state(self, wanted: GrantRequest) -> str:
        return str(wanted.status)

    @display(description="Amount")
    def amount(self, wanted: GrantRequest) -> str:
        return console.nano_dollars(wanted.amount_nano)

    def has_decide_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm("billing.add_transfer")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        """Offers a decision while one is due; the model decides once more."""
        wanted = self.get_object(request, str(object_id))
        if wanted is None or wanted.status != GrantRequest.Status.REQUESTED:
            return []
        return super().get_actions_detail(request, object_id)  # type: ignore[misc]

    @console.transition(
        description="Approve",
        question="The organization can spend the credits at once. It cannot be undone.",
        submit="Grant the credits",
        permission="decide",
        icon="add_card",
    )
    def approve(self, request: HttpRequest, wanted: GrantRequest, form: Any) -> console.Said:
        grants.approve(wanted, by=console.actor(request))
        amount = console.nano_dollars(wanted.amount_nano)
        return messages.SUCCESS, f"{amount} granted to {wanted.organization}."

    @console.transition(
        description="Decline",
        question="Nothing is granted. It cannot be undone, but asked for again.",
        submit="Decline the grant",
        permission="decide",
        icon="block",
        danger=True,
    )
    def decline(self, request: HttpRequest, wanted: GrantRequest, form: Any) -> console.Said:
        wanted.decline(by=console.actor(request))
        return messages.SUCCESS, "The grant is declined."


class PaymentMixin:
    """How what is paid on a chain shows itself, asked for or come in."""

    @display(description="Amount")
    def amount(self, row: TopUp | Deposit) -> str:
        return row.amount_text

    @display(description="Chain", ordering="chain_id")
    def chain(self, row: TopUp | Deposit) -> str:
        return f"{chain_name(row.chain_id)} ({row.chain_id})"

    @display(description="Value")
    def value(self, row: TopUp | Deposit) -> str:
        return console.nano_dollars(row.amount_nano)

    @display(description="From")
    def paid_from(self, row: TopUp | Deposit) -> str:
        return _explorer(row.chain_id, "address", row.sender)

    @display(description="To")
    def paid_to(self, row: TopUp | Deposit) -> str:
        return _explorer(row.chain_id, "address", row.recipient)

    @display(description="Token")
    def paid_in(self, row: TopUp | Deposit) -> str:
        return _explorer(row.chain_id, "token", row.token)

    @display(description="Transaction")
    def transaction(self, row: TopUp | Deposit) -> str:
        return _explorer(row.chain_id, "tx", row.tx_hash)

    @display(description="From")
    def short_sender(self, row: TopUp | Deposit) -> str:
        return _short(row.sender)

    @display(description="Transaction")
    def short_transaction(self, row: TopUp | Deposit) -> str:
        return _short(row.tx_hash)

    @display(description="Block")
    def block(self, row: TopUp | Deposit) -> str:
        return (
            ""
            if row.block_number is None
            else _explorer(row.chain_id, "block", str(row.block_number))
        )


class DepositInline(PaymentMixin, console.ReadOnlyInline, console.TabularInline):
    """What came in for a top-up, also what was not as asked."""

    model = Deposit
    fk_name = "top_up"
    fields = ("state", "amount", "mined_at", "short_transaction")
    readonly_fields = fields
    show_change_link = True

    @display(description="Status")
    def state(self, deposit: Deposit) -> str:
        return str(deposit.status)


@admin.register(TopUp)
class TopUpAdmin(PaymentMixin, ReadOnlyAdmin):
    """What organizations asked to pay, latest first."""

    list_display = (
        "created_at", "state", "organization", "amount", "chain", "short_sender", "expires_at",
        "confirmed_at",
    )  # fmt: skip
    list_select_related = ("organization",)
    list_filter = ("status", "chain_id")
    search_fields = ("sender__iexact", "tx_hash", "organization__name")
    uuid_search_fields = ("id", "organization_id")
    paginator = console.BoundedPaginator
    ordering = ("-created_at",)
    sortable_by = ()
    inlines = (DepositInline,)
    fieldsets = (
        (None, {"fields": (("state", "amount", "value"), "organization")}),
        ("Payment", {"fields": ("paid_from", "paid_to", "paid_in", ("chain", "units"))}),
        (
            "Progress",
            {
                "fields": (
                    "transaction",
                    ("block", "blocks"),
                    ("expires_at", "payable_until", "confirmed_at"),
                )
            },
        ),
        (
            "Record",
            {
                "classes": ["collapse"],
                "fields": (
                    ("created_at", "updated_at"), "id", ("requested_by", "idempotency_key"),
                    "is_reserved",
                ),
            },
        ),
    )  # fmt: skip
    readonly_fields = (
        "state", "amount", "value", "chain", "paid_in", "paid_from", "paid_to", "transaction",
        "block", "blocks", "units", "expires_at", "payable_until", "confirmed_at", "created_at",
        "updated_at", "id", "requested_by", "idempotency_key", "is_reserved", "organization",
    )  # fmt: skip
    readonly_preprocess_fields = {"state": console.chips(_STATES)}

    @display(description="Status", label=_STATES)
    def state(self, top_up: TopUp) -> str:
        return str(top_up.status)

    @display(description="Confirmations")
    def blocks(self, top_up: TopUp) -> str:
        return str(top_up.confirmations)


class CreditDialog(Dialog):
    """Asks whom a deposit belongs to."""

    organization = forms.ModelChoiceField(
        queryset=Organization.objects.all(),
        widget=console.TextWidget(),
        label="Organization ID",
        error_messages={"invalid_choice": "There is no such organization."},
    )
    note = forms.CharField(
        max_length=1_000,
        widget=console.TextareaWidget(attrs={"rows": 2}),
        help_text="Why it is theirs.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        deposit = _deposit(self.object_id)
        if deposit is not None and deposit.top_up is not None:
            self.fields["organization"].initial = deposit.top_up.organization_id

    def clean_note(self) -> str:
        return _plain(self.cleaned_data["note"])


class DismissDialog(Dialog):
    """Asks why nobody is credited."""

    note = forms.CharField(
        max_length=1_000,
        widget=console.TextareaWidget(attrs={"rows": 2}),
        help_text="What became of the money.",
    )

    def clean_note(self) -> str:
        return _plain(self.cleaned_data["note"])


def _deposit(object_id: str) -> Deposit | None:
    try:
        return Deposit.objects.select_related("top_up").filter(pk=object_id).first()
    except ValidationError:
        return None


def _plain(note: str) -> str:
    note = " ".join(note.split())
    if CONTROL_CHARACTERS.search(note):
        raise ValidationError("Must not contain control characters.")
    return note


@admin.register(Deposit)
class DepositAdmin(PaymentMixin, ReadOnlyAdmin):
    """What came in, latest first; what was not as asked is resolved here, once."""

    list_display = (
        "mined_at", "state", "found", "amount", "value", "chain", "short_sender", "organization",
        "short_transaction",
    )  # fmt: skip
    list_select_related = ("organization", "top_up")
    list_filter = ("status", "finding", "chain_id")
    search_fields = ("tx_hash", "sender__iexact", "organization__name")
    uuid_search_fields = ("id", "organization_id", "top_up_id")
    paginator = console.BoundedPaginator
    ordering = ("-created_at",)
    sortable_by = ()
    actions_detail = ("credit", "dismiss")
    fieldsets = (
        (None, {"fields": (("state", "found"), ("amount", "value"), ("organization", "top_up"))}),
        (
            "Transaction",
            {
                "fields": (
                    "transaction",
                    ("block", "ordinal", "mined_at"),
                    "hash_of_block",
                    "paid_from",
                    "paid_to",
                    "paid_in",
                    ("chain", "units"),
                )
            },
        ),
        ("Resolution", {"fields": (("resolved_at", "resolved_by"), "note")}),
        (
            "Record",
            {"classes": ["collapse"], "fields": (("created_at", "updated_at"), "id")},
        ),
    )
    readonly_fields = (
        "state", "found", "amount", "value", "organization", "top_up", "transaction", "ordinal",
        "block", "mined_at", "hash_of_block", "chain", "paid_in", "paid_from", "paid_to", "units",
        "resolved_at", "resolved_by", "note", "created_at", "updated_at", "id",
    )  # fmt: skip
    readonly_preprocess_fields = {
        "state": console.chips(_FINDINGS),
        "found": console.chips(_FINDINGS),
    }

    @display(description="Status", label=_FINDINGS)
    def state(self, deposit: Deposit) -> str:
        return str(deposit.status)

    @display(description="Found to be", label=_FINDINGS)
    def found(self, deposit: Deposit) -> str:
        return str(deposit.finding)

    @display(description="Block hash")
    def hash_of_block(self, deposit: Deposit) -> str:
        return _wrapped(deposit.block_hash)

    def has_resolve_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm("billing.change_deposit")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        """Offers a resolution of what waits for one; the model decides once more."""
        deposit = self.get_object(request, str(object_id))
        if deposit is None or deposit.status not in Deposit.REVIEWED:
            return []
        return super().get_actions_detail(request, object_id)  # type: ignore[misc]

    @console.transition(
        description="Credit",
        question="The organization gets the whole value as credits. This cannot be undone.",
        submit="Credit the deposit",
        permission="resolve",
        icon="add_card",
        form=CreditDialog,
    )
    def credit(self, request: HttpRequest, deposit: Deposit, form: Any) -> console.Said:
        organization = form.cleaned_data["organization"]
        matching.credit(
            deposit,
            organization.pk,
            by=console.actor(request),
            note=form.cleaned_data["note"],
        )
        value = console.nano_dollars(deposit.amount_nano)
        return messages.SUCCESS, f"{value} credited to {organization}."

    @console.transition(
        description="Dismiss",
        question="Nobody is credited, for instance because it was paid back. "
        "This cannot be undone.",
        submit="Dismiss the deposit",
        permission="resolve",
        icon="block",
        danger=True,
        form=DismissDialog,
    )
    def dismiss(self, request: HttpRequest, deposit: Deposit, form: Any) -> console.Said:
        matching.dismiss(deposit, by=console.actor(request), note=form.cleaned_data["note"])
        return messages.SUCCESS, "The deposit is dismissed."


class ResumeDialog(Dialog):
    """Asks from which block on the payments are read again."""

    block = forms.IntegerField(
        min_value=0,
        widget=console.TextWidget(attrs={"inputmode": "numeric"}),
        help_text="Payments after this block are read again; known ones are not counted twice.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.object_id.isdecimal() and self.object_id.isascii():
            state = ChainState.objects.filter(chain_id=int(self.object_id)).first()
            if state is not None and state.number is not None:
                self.fields["block"].initial = max(state.number - _RESCAN, 0)


@admin.register(ChainState)
class ChainStateAdmin(ReadOnlyAdmin):
    """How far each chain is read, and what is in the way."""

    list_display = (
        "chain", "state", "number", "latest_number", "waiting", "scanned_at", "failure",
    )  # fmt: skip
    uuid_search_fields = ()
    sortable_by = ()
    actions_detail = ("resume",)
    fieldsets = (
        (None, {"fields": (("chain", "state"), ("number", "latest_number"), "hash_of_block")}),
        ("Taken", {"fields": ("token", "recipient", "confirmations")}),
        (
            "Reading",
            {
                "fields": (
                    ("scanned_at", "waiting"),
                    ("failures", "failure", "retry_at"),
                    ("halted_at", "halt_reason"),
                    ("resumed_at", "resumed_by"),
                )
            },
        ),
    )
    readonly_fields = (
        "chain", "state", "number", "latest_number", "hash_of_block", "token", "recipient",
        "confirmations", "scanned_at", "waiting", "failures", "failure", "retry_at", "halted_at",
        "halt_reason", "resumed_at", "resumed_by",
    )  # fmt: skip
    readonly_preprocess_fields = {"state": console.chips(_CHAIN_STATES)}

    @display(description="Chain", ordering="chain_id")
    def chain(self, state: ChainState) -> str:
        return f"{state} ({state.chain_id})"

    @display(description="State", label=_CHAIN_STATES)
    def state(self, state: ChainState) -> str:
        if state.halted_at is not None:
            return "halted"
        if state.chain_id not in settings.CHAINS:
            return "not configured"
        if state.failures:
            return "failing"
        return "starting" if state.cursor is None else "reading"

    @display(description="Block hash")
    def hash_of_block(self, state: ChainState) -> str:
        return _wrapped(state.block_hash or "")

    @display(description="In review")
    def waiting(self, state: ChainState) -> str:
        return str(Deposit.objects.in_review().filter(chain_id=state.chain_id).count())

    @display(description="Token")
    def token(self, state: ChainState) -> str:
        chain = settings.CHAINS.get(state.chain_id)
        return "" if chain is None else _wrapped(f"{chain.token.symbol} {chain.token.contract}")

    @display(description="Recipient")
    def recipient(self, state: ChainState) -> str:
        chain = settings.CHAINS.get(state.chain_id)
        return "" if chain is None else _wrapped(chain.recipient)

    @display(description="Confirmations")
    def confirmations(self, state: ChainState) -> str:
        chain = settings.CHAINS.get(state.chain_id)
        return "" if chain is None else str(chain.confirmations)

    def has_resume_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return request.user.has_perm("billing.change_chainstate")

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> Any:
        state = self.get_object(request, str(object_id))
        if state is None or state.halted_at is None:
            return []
        return super().get_actions_detail(request, object_id)  # type: ignore[misc]

    @console.transition(
        description="Resume",
        question="Look first at what was credited from the blocks that were replaced.",
        submit="Resume",
        permission="resume",
        icon="play_arrow",
        form=ResumeDialog,
    )
    def resume(self, request: HttpRequest, state: ChainState, form: Any) -> console.Said:
        chain = settings.CHAINS.get(state.chain_id)
        if chain is None:
            raise Unprocessable("The chain is not configured.")
        try:
            block = Node(chain, settings.EGRESS_POLICY).block(form.cleaned_data["block"])
        except ChainError as exc:
            raise Unavailable(str(exc)) from None
        state.resume(Cursor(block.number, block.hash), by=console.actor(request))
        return messages.SUCCESS, f"{state} is read again from block {block.number}."
