"""The page of the chains from which payments are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.http import HttpRequest

from billing.admin.cells import breakable
from billing.models import ChainState, Deposit, TopUp
from billing.topups.node import Node
from billing.topups.payments import Cursor
from billing.topups.rpc import ChainError
from config.api.errors import Unavailable, Unprocessable
from config.audit.context import actor_of
from config.console.actions import Message, transition
from config.console.base import ConsoleAdmin
from config.console.formatting import label_renderer
from config.console.forms import part
from config.console.unfold import Dialog, TextWidget, column, display

_CHAIN_STATES: Final = {
    "reading": "success", "starting": "info", "failing": "warning", "halted": "danger",
    "refused": "danger", "not configured": "warning",
}  # fmt: skip
_RESCAN: Final = 1_000


class BlockDialog(Dialog):
    """Asks for the block after which payments are read again."""

    block = forms.IntegerField(
        min_value=0,
        widget=TextWidget(attrs={"inputmode": "numeric"}),
        help_text="Payments after this block are read again. Known payments are not credited "
        "twice.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        number = self.object_id
        if number.isdecimal() and number.isascii() and len(number) < 20:
            state = ChainState.objects.filter(chain_id=int(number)).first()
            if state is not None and state.number is not None:
                self.fields["block"].initial = max(state.number - _RESCAN, 0)


@admin.register(ChainState)
class ChainStateAdmin(ConsoleAdmin):
    """Lists the chains, each with its last block read and its last failure."""

    is_read_only = True
    list_display = (
        "chain", "state", "number", "latest_number", "waiting", "scanned_at", "failure",
    )  # fmt: skip
    uuid_search_fields = ()
    sortable_by = ()
    actions_detail = ("resume", "read_again")
    fieldsets = (
        part(None, ("chain", "state"), ("number", "latest_number"), "hash_of_block"),
        part("Accepted payments", "token", "recipient", "former", "confirmations"),
        part(
            "Reading",
            ("scanned_at", "waiting"),
            ("failures", "failure", "retry_at"),
            ("halted_at", "halt_reason"),
            ("resumed_at", "resumed_by"),
        ),
    )
    readonly_preprocess_fields = {"state": label_renderer(_CHAIN_STATES)}

    chain = column("Chain", lambda state: f"{state} ({state.chain_id})", ordering="chain_id")

    @display(description="State", label=_CHAIN_STATES)
    def state(self, state: ChainState) -> str:
        if state.halted_at is not None:
            return "halted"
        if state.chain_id not in settings.CHAINS:
            return "not configured"
        if state.is_refused:
            return "refused"
        if state.failures:
            return "failing"
        return "starting" if state.cursor is None else "reading"

    hash_of_block = column("Block hash", lambda state: breakable(state.block_hash or ""))

    @display(description="Deposits under review")
    def waiting(self, state: ChainState) -> str:
        return str(Deposit.objects.in_review().filter(chain_id=state.chain_id).count())

    @display(description="Token")
    def token(self, state: ChainState) -> str:
        chain = settings.CHAINS.get(state.chain_id)
        return "" if chain is None else breakable(f"{chain.token.symbol} {chain.token.contract}")

    @display(description="Recipient")
    def recipient(self, state: ChainState) -> str:
        chain = settings.CHAINS.get(state.chain_id)
        return "" if chain is None else breakable(chain.recipient)

    @display(description="Former tokens and recipients")
    def former(self, state: ChainState) -> str:
        """Returns the payees of open top-ups that the settings no longer name."""
        chain = settings.CHAINS.get(state.chain_id)
        if chain is None:
            return ""
        payees = TopUp.objects.former_payees(chain)
        return breakable(
            ", ".join(f"{token.symbol} {token.contract} to {to}" for token, to in payees)
        )

    @display(description="Confirmations")
    def confirmations(self, state: ChainState) -> str:
        chain = settings.CHAINS.get(state.chain_id)
        return "" if chain is None else str(chain.confirmations)

    def offers_action(self, request: HttpRequest, obj: ChainState, name: str) -> bool:
        return obj.number is not None and (name == "resume") == (obj.halted_at is not None)

    @transition(
        "Resume",
        submit="Resume",
        permission="billing.change_chainstate",
        icon="play_arrow",
        form=BlockDialog,
    )
    def resume(self, request: HttpRequest, state: ChainState, form: Any) -> Message:
        """First check the payments that were credited from the replaced blocks."""
        return self._restart(request, state, form, state.resume)

    @transition(
        "Read again",
        submit="Read again",
        permission="billing.change_chainstate",
        icon="replay",
        form=BlockDialog,
    )
    def read_again(self, request: HttpRequest, state: ChainState, form: Any) -> Message:
        """Use this for a payment that is on the chain but was not read, because a node left it out
        of its answer.
        """
        return self._restart(request, state, form, state.read_again)

    def _restart(
        self, request: HttpRequest, state: ChainState, form: Any, restart: Callable[..., None]
    ) -> Message:
        """Moves the cursor to the block named on the form, with the hash that the node reports."""
        chain = settings.CHAINS.get(state.chain_id)
        if chain is None:
            raise Unprocessable("The chain is not in the settings.")
        try:
            block = Node(chain, settings.EGRESS_POLICY).read_block(form.cleaned_data["block"])
        except ChainError as exc:
            raise Unavailable(str(exc)) from None
        restart(Cursor(block.number, block.hash), by=actor_of(request))
        return messages.SUCCESS, f"{state} is read again after block {block.number}."
